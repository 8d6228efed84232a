"""A real run records every step of every peer, and its replay decides as it did."""

from __future__ import annotations

import json
import math

import pytest

from kungfu.trace import read_trace, replay
from tests.jobs.harness import ran
from tests.soak import SOAK


@SOAK
def test_the_replay_of_a_run_that_grew_decides_as_the_run_did(tmp_path):
    sizes = json.dumps({"5": 3})
    arguments = ["--results", tmp_path / "results", "--schedule", sizes, "--epochs", 80, "--patient-at", 2]
    ended = ran(tmp_path, "-np", 2, "--max", 3, program="network.py", arguments=arguments)
    assert ended.sizes == [2, 3]
    trace = read_trace(ended.folder)
    assert [one.step for one in trace.steps] == [row["step"] for row in ended.metrics]
    assert [one.size for one in trace.steps] == [row["size"] for row in ended.metrics]
    assert [one.agreed["mean_loss"] for one in trace.steps] == pytest.approx([row["loss"] for row in ended.metrics])
    assert trace.remarks == ()
    # Of both views: the steps of the first peers before are no steps of the view with the third.
    first = {view: next(one.local for one in trace.steps if one.size == view) for view in (2, 3)}
    assert all(math.isnan(row["step_seconds"]) for rows in first.values() for row in rows)
    again = replay(trace.plan, trace, whose="the run's")
    assert again.differences == ()
    assert [(one.step, one.value) for one in again.decisions] == [
        (event["step"], event["asked"]) for event in ended.all_of("decision")
    ]


def test_the_noise_scale_is_that_computed_by_hand_and_the_replay_has_it_too(tmp_path):
    """The noise scale of two peers is that computed by hand, and the replay has it too."""
    (tmp_path / "hurry").touch()
    ended = ran(tmp_path, "-np", 2, program="paced.py", arguments=[tmp_path, "noise"])
    assert [row["noise_scale"] for row in ended.metrics] == [pytest.approx(2 / 3, rel=1e-6)] * 230
    calls = json.loads((tmp_path / "calls").read_text())
    assert calls == [[step, pytest.approx(2 / 3)] for step in range(3, 231, 3)]
    assert [row["loss"] for row in ended.metrics] == [1.0] * 230, "inputs of 3, 0, 1 and 0 have the mean 1"
    trace = read_trace(ended.folder)
    assert [one.after for one in trace.snapshots] == [0, 100, 200]
    again = replay(trace.plan, trace, whose="the run's", start=150)
    assert again.differences == ()
    assert [one.step for one in again.decisions] == list(range(150, 231, 3))
    assert [one.inputs["noise_scale"] for one in again.decisions] == pytest.approx([2 / 3] * 27)
