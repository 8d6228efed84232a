"""The scripts of examples/keras as jobs whose peers come, go and die: they come to what plain Keras comes to."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.jobs.harness import LEAN, ONE_THREAD_EACH, PROGRAMS, ROOT, Ended, ran
from tests.jobs.programs.plain_twin import done, recorded
from tests.soak import SOAK

SCRIPTS = ROOT / "examples" / "keras"
PROGRAM = PROGRAMS / "keras_example.py"
RELATIVE = 1e-8
# From 2 peers to 4, to 1, to 3, of which rank 0 is killed; each after a step in the middle of an epoch.
ALL = {"schedule": {0: 2, 4: 4, 17: 1, 21: 3}, "wait": {6: 1, 23: 2}, "die": [27, 3, 0]}

# Each has 15 steps an epoch.
EXAMPLES = [
    ("digits.py", ["--epochs", "3", "--batch-size", "96"]),
    ("gan.py", ["--epochs", "3", "--batch-size", "120"]),
    ("autoencoder.py", ["--epochs", "3", "--batch-size", "96"]),
    ("structured.py", ["--epochs", "3", "--batch-size", "31"]),
    ("text.py", ["--epochs", "3", "--batch-size", "96", "--lines", "1600"]),
    ("contrastive.py", ["--epochs", "3", "--batch-size", "100"]),
]


def program_line(tmp_path: Path, script: str, words: list[str], **given: Any) -> list[object]:
    """The options of the program for a script, its words, and what is given."""
    given["words"] = ["--float64", *words]
    options = [word for name, value in given.items() for word in (f"--{name}", json.dumps(value))]
    return ["--folder", tmp_path, "--script", SCRIPTS / script, *options]


def as_job(tmp_path: Path, script: str, words: list[str], *options: object, **given: Any) -> Ended:
    """The script as a job, whose peers leave in ``tmp_path`` what they trained on."""
    line = program_line(tmp_path, script, words, **given)
    return ran(tmp_path, *options, program=PROGRAM, arguments=line, deadline_s=500.0)


def as_plain(tmp_path: Path, script: str, words: list[str]) -> dict[str, Any]:
    """The script as plain Keras on what the job trained on: what it came to."""
    line = [sys.executable, PROGRAM, *program_line(tmp_path, script, words, plain=1)]
    environment = {**os.environ, **ONE_THREAD_EACH, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, LEAN)))}
    subprocess.run(line, check=True, env=environment, cwd=tmp_path, timeout=500, stdout=subprocess.DEVNULL)
    return dict(pickle.loads((tmp_path / "plain.pickle").read_bytes()))


def assert_as_plain(tmp_path: Path, script: str, words: list[str]) -> None:
    """All peers that stayed have the losses and weights of plain Keras on the same slices, after one trace."""
    plain = as_plain(tmp_path, script, words)
    found = [pickle.loads(path.read_bytes()) for path in sorted(tmp_path.glob("[0-9]*.pickle"))]
    stayed = [one for one in found if not one["left"]]
    assert stayed
    assert {one["traces"] for one in found} == {1}
    for one in stayed:
        assert one["history"].keys() == plain["history"].keys()
        for name, values in plain["history"].items():
            np.testing.assert_allclose(one["history"][name], values, rtol=RELATIVE, atol=1e-12, err_msg=name)
        for path, value in plain["weights"].items():
            np.testing.assert_allclose(one["weights"][path], value, rtol=RELATIVE, atol=1e-12, err_msg=path)


def assert_each_sample_once(tmp_path: Path, *, phase: int = 0, samples: int | None = None) -> None:
    """Every epoch of a fit had all its samples, each once, in an order of its own; by default those of the last fit."""
    epochs: dict[int, list[bytes]] = {}
    for records in recorded(tmp_path, phase).values():
        for one in done(records):
            leaves = tf.nest.flatten(one["batch"])
            rows = [b"".join(leaf[row].tobytes() for leaf in leaves) for row in range(len(leaves[0]))]
            epochs.setdefault(one["epoch"], []).extend([] if one["empty"] else rows)
    assert len(epochs) > 1
    first, *others = epochs.values()
    (known,) = {pickle.loads(path.read_bytes())["samples"] for path in tmp_path.glob("[0-9]*.pickle")}
    assert len(first) == len(set(first)) == (samples or known)
    for other in others:
        assert sorted(other) == sorted(first)
        assert other != first


def in_the_middle(tmp_path: Path) -> list[bool]:
    """Of each view that trained but the first: whether it began in the middle of an epoch."""
    began: dict[int, bool] = {}
    for records in recorded(tmp_path, 0).values():
        one = done(records)[0]
        began.setdefault(one["version"], one["offset"] > 0)
    return list(began.values())[1:]


@SOAK
@pytest.mark.parametrize(("script", "words"), EXAMPLES)
def test_an_example_that_is_rescaled_and_loses_a_peer_ends_like_plain_keras(tmp_path, script, words):
    """An example from two peers to four, to one and to three, with a kill, comes to the same as plain Keras."""
    ended = as_job(tmp_path, script, words, "-np", 2, "--min", 1, "--max", 4, **ALL)
    assert ended.sizes[:5] == [2, 4, 1, 3, 2]
    assert len(ended.all_of("recovered")) == 1
    assert all(in_the_middle(tmp_path))
    assert_each_sample_once(tmp_path)
    assert_as_plain(tmp_path, script, words)


@SOAK
def test_fine_tuning_in_three_fits_ends_like_plain_keras(tmp_path):
    """Fine-tuning in three fits that grow, shrink and lose rank 0 comes to the same as plain Keras."""
    words = ["--epochs", "2", "--batch-size", "61"]  # of 15 steps each
    ended = as_job(
        tmp_path, "fine_tuning.py", words, "-np", 2, "--min", 1, "--max", 4,
        schedule={0: 2, 4: 4, 34: 1, 50: 3}, wait={6: 1, 52: 2}, die=[70, 3, 0],
    )  # fmt: skip
    assert ended.sizes[:7] == [2, 4, 4, 1, 3, 3, 2], "each fit begins with a view of its own"
    assert [event["phase"] for event in ended.all_of("phase")] == [2, 3]
    assert len(ended.all_of("recovered")) == 1
    for phase, samples in enumerate((901, 896, 896)):
        assert_each_sample_once(tmp_path, phase=phase, samples=samples)
    assert_as_plain(tmp_path, "fine_tuning.py", words)


@SOAK
def test_a_step_with_two_optimizers_is_undone_if_rank_0_is_killed_between_them(tmp_path):
    """A step with two optimizers is undone if rank 0 is killed between their applications."""
    words = ["--epochs", "2", "--batch-size", "300"]  # of 6 steps each
    ended = as_job(
        tmp_path, "gan.py", words, "-np", 2, "--min", 1, "--max", 3,
        schedule={0: 2, 2: 3, 6: 2}, wait={4: 1}, between=[10, 2, 0],
    )  # fmt: skip
    assert ended.sizes == [2, 3, 2, 1]
    (recovered,) = ended.all_of("recovered")
    assert recovered["step"] == 9
    assert recovered["noticed_by"].startswith("in step 10: ")
    assert recovered["noticed_by"].endswith("died during gradients"), "the first message was through"
    assert_each_sample_once(tmp_path)
    assert_as_plain(tmp_path, "gan.py", words)


@SOAK
def test_a_step_with_two_optimizers_over_horovod_comes_to_what_plain_keras_does(tmp_path):
    words = ["--epochs", "2", "--batch-size", "200"]  # of 9 steps each
    ended = as_job(
        tmp_path, "gan.py", words, "-np", 2, "--min", 1, "--max", 3, "--attachment", "horovod",
        schedule={0: 2, 3: 3, 12: 1}, wait={5: 1},
    )  # fmt: skip
    assert ended.sizes == [2, 3, 1]
    assert_each_sample_once(tmp_path)
    assert_as_plain(tmp_path, "gan.py", words)
