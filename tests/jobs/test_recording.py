"""A real run records every step of every peer, and its replay decides as it did."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import subprocess
import sys

import pytest

from kungfu.record import read_trace, replay
from tests.jobs.harness import ROOT, lines_of, ran, started
from tests.soak import SOAK

pytestmark = pytest.mark.slow


def kungfu(*words):
    """A command about a job."""
    line = [sys.executable, "-m", "kungfu.cli.main", *map(str, words)]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)


@SOAK
def test_the_replay_of_a_run_that_grew_decides_as_the_run_did(tmp_path):
    sizes = json.dumps({"5": 3})
    arguments = ["--results", tmp_path / "results", "--schedule", sizes, "--epochs", 80, "--patient-at", 2]
    ended = ran(tmp_path, "-np", 2, "--max", 3, program="network.py", arguments=arguments)
    assert ended.code == 0, ended.output
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


@SOAK
def test_a_full_disk_under_the_record_ends_nothing_and_leaves_a_gap(tmp_path):
    """A full disk under the record of a run ends nothing and leaves a gap that says so."""
    sizes = json.dumps({"1000000": 1})
    arguments = ["--results", tmp_path / "results", "--schedule", sizes, "--epochs", 1_000_000, "--patient-at", 2]
    with started(tmp_path, "-np", 2, program="network.py", arguments=arguments) as job:
        job.steps(1)
        unlimited = resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
        assert kungfu("resize", 1, "--logdir", job.folder).returncode == 0, "it is done, and has no record"
        resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, unlimited)
        job.event("gap", file="events.jsonl")
        job.steps(len(lines_of(job.folder / "metrics.jsonl")) + 1)
        assert kungfu("stop", "--logdir", job.folder).returncode == 0
        ended = job.end(deadline_s=120.0)
    assert ended.code == 0, ended.output
    assert ended.output.count("cannot be written") <= 1, "this file had no room either"
    assert re.search(r"the record has a gap: events.jsonl lacks \d+ lines .*File too large", ended.output)
    assert "Traceback" not in ended.output
    (lost,) = [event["lines"] for event in ended.all_of("gap") if event["file"] == "metrics.jsonl"]
    assert len(ended.metrics) + lost == max(event["steps"] for event in ended.all_of("finished"))
    story = kungfu("why", ended.folder)
    assert re.search(r"steps \d+ to \d+ are not in metrics.jsonl: what was told of them could not be", story.stdout)
    again = kungfu("replay", ended.folder)
    assert (again.returncode, "differs" in again.stdout) == (0, False), again.stdout + again.stderr
    assert "are not in the record" in again.stdout


def test_the_noise_scale_is_that_computed_by_hand_and_the_replay_has_it_too(tmp_path):
    """The noise scale of two peers is that computed by hand, and the replay has it too."""
    arguments = [230, tmp_path / "calls"]
    ended = ran(tmp_path, "-np", 2, program="signals.py", arguments=arguments)
    assert ended.code == 0, ended.output
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


def test_without_room_for_a_trace_there_is_none_and_a_replay_says_why(tmp_path):
    arguments = [5, tmp_path / "calls"]
    ended = ran(tmp_path, "-np", 1, "--trace-limit", 0, program="signals.py", arguments=arguments)
    assert ended.code == 0, ended.output
    assert not (ended.folder / "trace.jsonl").exists()
    told = kungfu("replay", ended.folder)
    assert told.returncode == 2
    assert "--trace-limit 0" in told.stderr
