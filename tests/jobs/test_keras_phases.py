"""Several fits of Keras under kungfu-run, with peers that join, leave and die in one of them, against plain Keras."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

from kungfu.runtime.checkpoints.folder import find
from kungfu.runtime.checkpoints.manifest import read_manifest
from kungfu.runtime.core.sample_slices import shuffled
from tests.jobs.harness import fit_job, started
from tests.jobs.programs import keras_phases
from tests.keras.fitting import float64
from tests.soak import SOAK

RELATIVE = 1e-8
STEPS = 20
fitted = partial(fit_job, "keras_phases.py")


def plain() -> tuple[list[dict[str, list[float]]], list[list[float]], list[np.ndarray]]:
    """Histories, scores and weights of Keras alone, a batch of the job after the other, in the job's order."""
    histories, scores = [], []
    with float64():
        (x, y), model = keras_phases.data(), keras_phases.build()
        for phase in range(2):
            keras_phases.compiled(model, phase)
            history: dict[str, list[float]] = {}
            for epoch in range(keras_phases.EPOCHS):
                model.optimizer.learning_rate = float(model.optimizer.learning_rate) * keras_phases.DECAY
                order = shuffled(keras_phases.SAMPLES, seed=3, epoch=epoch)
                found = model.fit(
                    x[order], y[order], batch_size=keras_phases.BATCH, shuffle=False, verbose=0,
                    validation_data=(x[:20], y[:20]),
                )  # fmt: skip
                for name, values in found.history.items():
                    history.setdefault(name, []).extend(values)
            histories.append(history)
            scores.append(model.evaluate(x, y, verbose=0))
        return histories, scores, [np.asarray(one).ravel() for one in model.weights]


def assert_as_plain(found: dict[str, Any]) -> None:
    """What a peer has that was there at the end, whenever it came, is what plain Keras has."""
    histories, scores, weights = plain()
    assert found["steps"] == STEPS
    for mine, other in zip(found["histories"], histories, strict=True):
        assert mine.keys() == {*other, "learning_rate"}
        for name, values in other.items():
            np.testing.assert_allclose(mine[name], values, rtol=RELATIVE, err_msg=name)
    np.testing.assert_allclose(found["scores"], scores, rtol=RELATIVE)
    for one, value in zip(found["weights"], weights, strict=True):
        np.testing.assert_allclose(one, value, rtol=RELATIVE)


@SOAK
def test_the_job_grows_in_the_first_fit_and_in_the_second_and_shrinks(tmp_path):
    ended, found = fitted(
        tmp_path, "-np", 1, "--max", 3, schedule={"0": 1, "3": 2, "12": 3, "17": 2}, wait={"5": 1, "13": 2},
    )  # fmt: skip
    assert ended.sizes == [1, 2, 2, 3, 2]
    assert [event["step"] for event in ended.all_of("rescale")] == [6, 14, 18]
    (phase,) = ended.all_of("phase")
    assert (phase["phase"], phase["peers"]) == (2, [0, 1])
    assert [event["phase"] for event in ended.all_of("finished") if not event["leaving"]] == [1, 1, 2, 2]
    for peer in (0, 1):  # of which the second came in the middle of the first fit
        assert_as_plain(found[peer])
    # The third one came in the second fit, and passed through the first: it knows what that came to.
    joined = found[2]
    assert joined["left"], "the newest one was let go"
    assert joined["histories"] == found[0]["histories"][:1]
    np.testing.assert_allclose(joined["scores"], found[0]["scores"][:1], rtol=RELATIVE)
    assert joined["ranks"] == [None], "between fits that are over it is in no view"


def test_rank_0_is_killed_in_the_second_fit_and_replaced(tmp_path):
    """Rank 0 is killed in the second fit, and the peer in its place passes through the first."""
    ended, found = fitted(tmp_path, "-np", 2, "--max", 2, die=0, wait={"17": 1})
    assert ended.sizes == [2, 2, 1, 2]
    for peer in (1, 2):
        assert_as_plain(found[peer])
    assert found[2]["ranks"] == [None, 1]
    assert found[1]["ranks"] == [1, 0]
    # The record tells how far each fit was, whoever led.
    told = {row["step"]: row["progress"] for row in ended.metrics}
    assert {step: one["fit"] for step, one in told.items()} == {step: 1 + (step > STEPS // 2) for step in told}
    assert {one["epochs"] for one in told.values()} == {keras_phases.EPOCHS}
    assert {step: one["steps_left"] for step, one in told.items()} == {step: -step % (STEPS // 2) for step in told}
    assert (told[STEPS]["samples_left"], told[STEPS]["samples"]) == (0, 2 * keras_phases.EPOCHS * keras_phases.SAMPLES)


@SOAK
def test_a_joiner_of_the_second_fit_has_the_rate_that_a_rule_has_set_in_the_first(tmp_path):
    """One optimizer with a schedule: what a rule made of it goes on, on a peer too that was not there."""
    ended, found = fitted(tmp_path, "-np", 2, "--max", 2, die=0, wait={"17": 1}, scheduled=1)
    assert ended.sizes == [2, 2, 1, 2]
    assert [event["step"] for event in ended.all_of("set")] == [4]
    expected = 0.1 * 0.5 ** ((STEPS - 5) / 20)
    assert [found[peer]["rate"] for peer in (1, 2)] == [pytest.approx(expected)] * 2
    assert found[2]["weights"] == found[1]["weights"]
    assert [row["learning_rate"] for row in ended.metrics][-1] == pytest.approx(0.1 * 0.5 ** ((STEPS - 6) / 20))


@SOAK
def test_a_job_that_ctrl_c_ends_in_its_second_fit_continues_there(tmp_path):
    """A job that Ctrl-C ends in its second fit continues there, and a joiner passes through the first."""
    folders = [tmp_path / name for name in ("first", "second")]
    for one in folders:
        one.mkdir()
    first, second = folders
    kept, words = tmp_path / "kept", ["--results", first / "results", "--record", first / "log" / "events.jsonl"]
    # The checkpoint is of step 14, in the middle of the first epoch of the second fit.
    words += ["--keep", "[13, 16]", "--schedule", '{"0": 2}']
    with started(first, "-np", 2, "--checkpoints", kept, program="keras_phases.py", arguments=words) as job:
        job.event("checkpoint")
        job.steps(16)
        job.signal(signal.SIGINT)
        ended = job.end(code=130, deadline_s=10)
    assert "ended by Ctrl-C" in ended.output
    manifest = read_manifest(find(kept))
    assert (manifest.phase, manifest.step) == (2, 14)
    assert [event["phase"] for event in ended.all_of("phase")] == [2]

    ended, found = fitted(
        second, "-np", 1, "--max", 2, "--resume", kept, schedule={"0": 1, "16": 2}, wait={"17": 1},
    )  # fmt: skip
    assert ended.sizes == [1, 2]
    assert ended.metrics[0]["step"] == 15, "nothing is done again"
    (phase,) = ended.all_of("phase")
    assert (phase["phase"], phase["peers"]) == (2, [0]), "with which the job begins"
    for peer in (0, 1):
        assert_as_plain(found[peer])
    assert found[0]["ranks"] == [None, 0], "it passed through the first fit too"
    assert found[1]["ranks"] == [None, 1]
