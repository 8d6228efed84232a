"""The policies of docs/recipes.md in real jobs: each does what its page says, and its replay decides the same."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.main import main
from tests.docs.test_programs import DOCS, blocks
from tests.jobs.harness import asked, started
from tests.jobs.test_policies import replayed
from tests.soak import SOAK

BATCH, RATE = {"event": "set", "what": "global batch size"}, {"event": "set", "what": "learning rate"}
TWO, GROWING = ("-np", 2), ("-np", 1, "--max", 2)
GROWN = {"event": "rescale", "to": 2}

# For each call of a recipe: the options of the job, those of its program, and events that are to follow.
RECIPES: dict[str, tuple[tuple[object, ...], tuple[object, ...], list[dict[str, Any]]]] = {
    "adabatch(batch=12, rate=0.05, epochs=2, decay=0.9, largest=24)": (TWO, (), [{**BATCH, "to": 24}, RATE]),
    "batch_instead_of_decay(batch=12, rate=0.05, drops=(1, 2), factor=2, largest=24)": (
        TWO, (), [{**BATCH, "to": 24}, {**RATE, "to": pytest.approx(0.025)}],
    ),
    "cyclic_batch(low=12, high=36, half_cycle=20, every=10)": (TWO, (), [{**BATCH, "to": 36}, {**BATCH, "to": 12}]),
    "adascale(base_batch=6, steps=120)": (TWO, (), [{"event": "set", "what": "stop"}]),
    "cabs(smallest=4, largest=48)": (TWO, (), [BATCH]),
    "norm_test(theta=0.1, largest=48)": (TWO, (), [{**BATCH, "to": 48}]),
    "inner_product_test(theta=0.1, largest=48)": (TWO, (), [{**BATCH, "to": 48}]),
    "simigrad(smallest=6, largest=48)": (TWO, (), [BATCH]),
    "halve_when_turning(rate=0.5, burn_in=10)": (TWO, (), [{**RATE, "to": 0.25}]),
    "divide_on_plateau(rate=0.05, patience=2)": (
        TWO, ("--fed", "accuracy=0.5"), [{**RATE, "to": pytest.approx(0.005)}],
    ),
    "replace_outliers(every=10)": (
        ("-np", 3), ("--slow", 1), [{"event": "decision", "peers": [1]}, {"event": "rescale"}],
    ),
    "within_price(most=1000.0)": (GROWING, ("--fed", "price=0.01"), [GROWN]),
    "deadline_and_budget(deadline_s=1.0, budget=0.1)": (GROWING, (), [GROWN, {"event": "set", "what": "stop"}]),
    "by_night(night=2, day=1)": (GROWING, ("--fed", "hour=23.5"), [GROWN]),
    "progressive_resizing(smallest=4, largest=8, stages=3, epochs=6)": (
        TWO, (), [{"event": "called", "also": [f"set_value('pixels', {pixels})"]} for pixels in (6, 8)],
    ),
    "post_local_sgd(switch=2, every=4)": (
        TWO, ("--every", 1), [{"event": "set", "what": "averaging interval", "to": 4}],
    ),
}  # fmt: skip


def test_every_recipe_has_a_job() -> None:
    text = (DOCS / "recipes.md").read_text()
    assert [one.partition("(")[0] for one in RECIPES] == [line.split("(")[0][4:] for line in made(text)]


def made(text: str) -> list[str]:
    """The line after each decorator of the page."""
    lines = text.splitlines()
    return [after for line, after in pairwise(lines) if line == "@kf.policy"]


@SOAK
@pytest.mark.parametrize("call", RECIPES, ids=lambda call: str(call.partition("(")[0]))
def test_a_recipe_does_in_a_job_what_the_page_says(
    call: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "recipes.md").read_text()
    (tmp_path / "mine.py").write_text("\n".join(source for kind, source in blocks(page) if kind == "python"))
    line, arguments, expected = RECIPES[call]
    rule, policy = call.partition("(")[0], ["--policy", f"{tmp_path / 'mine.py'}:{call}"]
    with started(tmp_path, *line, *policy, program="recipes.py", arguments=arguments) as job:
        for one in expected:
            fields = {name: value for name, value in one.items() if name != "event"}
            job.event(one["event"], **fields)
        if expected[-1].get("what") != "stop":
            asked(job.folder, capsys, "stop")
        ended = job.end()
    _, decisions = replayed(ended)
    acting = [one for one in decisions if one.mode == "acting"]
    assert {one.rule.removesuffix("_2").removesuffix("_3") for one in acting} == {rule}


@SOAK
def test_a_profile_measures_sizes_at_batches_and_hybrid_scaling_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(tmp_path, "-np", 1, "--max", 2, program="recipes.py") as job:
        job.steps(5)
        words = ("profile", 1, 2, "--batches", 8, 24, "--steps", 10, "--to", tmp_path / "measured")
        document = asked(job.folder, capsys, *words)
        asked(job.folder, capsys, "stop")
        ended = job.end()
    assert document["state"] == "carried out"
    assert [(one["batch"], one["size"]) for one in document["sizes"]] == [(8, 1), (8, 2), (24, 1), (24, 2)]
    assert all(one["steps"] == 10 for one in document["sizes"])
    assert ended.sizes == [1, 2, 1]
    assert (ended.metrics[0]["batch"], ended.metrics[-1]["batch"]) == (12, 12), "that of the job, before and after"
    policy = f"hybrid_scaling.from_profile({str(tmp_path / 'measured.json')!r}, program='recipes.py', batch=8)"
    with started(tmp_path, "-np", 1, "--max", 2, "--policy", policy, program="recipes.py", name="scaled") as job:
        job.steps(5)
        asked(job.folder, capsys, "resize", 2)
        job.event("rescale", to=2)
        asked(job.folder, capsys, "stop")
        job.end()


@SOAK
def test_a_profile_of_batches_outlives_a_killed_coordinator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with started(tmp_path, "-np", 2, "--max", 2, program="recipes.py") as job:
        job.steps(5)
        words = ("profile", 2, 2, "--batches", 8, 24, "--steps", 60, "--id", "p")
        with capsys.disabled():
            main([*map(str, words), "--logdir", str(job.folder), "--no-wait"])
        job.event("set", what="global batch size", to=8)
        job.signal(signal.SIGKILL, peer=0)
        job.event("recovered")
        document = asked(job.folder, capsys, *words, "--to", tmp_path / "measured")
        asked(job.folder, capsys, "stop")
        ended = job.end()
    assert [(one["batch"], one["size"], one["steps"]) for one in document["sizes"]] == [(8, 2, 60), (24, 2, 60)]
    assert (ended.sizes, ended.metrics[-1]["batch"]) == ([2, 1, 2], 12)
