"""The data of a picture as JSON: the curves, the events and the signals that the picture would show."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Printed
from tests.cli.recorded import GROWN, measured, written


def test_the_data_are_those_of_the_picture(tmp_path: Path, printed: Printed) -> None:
    rows = [
        measured(step, gain=1.0 * step, other=2.0 * step, loss="NaN" if step == 3 else 0.5, size=2 if step < 6 else 3,
                 straggler_fractions={"0": 1.0, "7": 0.5})
        for step in range(1, 302)
    ]  # fmt: skip
    run = written(tmp_path, GROWN, metrics=rows)
    given = json.loads(printed("draw", run, "--json", "--signals", "gain,straggler_fractions"))
    assert not (tmp_path / "run.png").exists()
    assert given["steps"] == list(range(1, 302))
    assert list(given["curves"]) == ["size", "batch", "noise_scale", "loss", "samples_per_s", "gain"]
    loss = given["curves"]["loss"]
    assert (loss["median"][1:4], loss["not_finite_share"][1:4]) == ([0.5, None, 0.5], [0.0, 1.0, 0.0])
    assert given["curves"]["samples_per_s"]["median"][0] is None, "the first step was not timed"
    assert given["curves"]["gain"] == {**given["curves"]["gain"], "median": [1.0 * step for step in range(1, 302)]}
    assert given["peers"]["7"]["high"][:2] == [0.5, 0.5]
    assert given["not_finite"] == {"loss": "NaN", "steps": [3]}
    assert [(one["event"], one["step"]) for one in given["events"]] == [
        ("decision", 50), ("rescale", 163), ("decision", 300), ("rescale", 301)
    ]  # fmt: skip
    assert (given["signals"], given["not_drawn"]) == (
        ["noise_scale", "gain", "other", "straggler_fractions"],
        ["other"],
    )


def test_a_long_run_is_given_in_groups_and_an_unknown_signal_is_refused(tmp_path: Path, printed: Printed) -> None:
    run = written(tmp_path, GROWN, metrics=[measured(step) for step in range(1, 10_001)])
    given = json.loads(printed("draw", run, "--json"))
    assert 1024 <= len(given["steps"]) <= 2048
    assert given["steps"][-1] == 10_000
    assert {len(curve) for one in given["curves"].values() for curve in one.values()} == {len(given["steps"])}
    assert given["curves"]["noise_scale"]["low"] < given["curves"]["noise_scale"]["high"]
    assert given["peers"] == {}
    assert "no signal of this name" in printed("draw", run, "--json", "--signals", "gain", code=2)
    assert "give one of the two" in printed("draw", run, "--json", "--to", tmp_path / "a.png", code=2)
