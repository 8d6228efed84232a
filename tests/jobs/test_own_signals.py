"""A job whose policies use what its program publishes and feeds, through a rescale and the death of rank 0."""

from __future__ import annotations

import math
import os
import signal

import pytest

from kungfu.trace import read_trace, replay
from tests.jobs.harness import started


def test_what_is_published_is_that_of_all_samples_and_what_was_fed_outlives_rank_0(tmp_path):
    with started(tmp_path, "-np", 2, "--max", 3, program="paced.py", arguments=[tmp_path, "own-signals"]) as job:
        job.event("rescale", to=3)
        os.kill(job.event("spawned", peer=0)["pid"], signal.SIGKILL)
        recovered = job.event("recovered")
        job.event("rescale", to=3, view=recovered["view"] + 1)
        (tmp_path / "hurry").touch()
        ended = job.end()
    assert ended.sizes == [2, 3, 2, 3]
    prices = [row["price"] for row in ended.metrics]
    known = next(place for place, one in enumerate(prices) if one is not None and not math.isnan(float(one)))
    assert 1 <= known <= 4
    assert set(prices[known:]) == {1.5}, "rank 0's, before and after its death, whatever the others were fed"
    assert len(ended.metrics) >= 200
    for row in ended.metrics:
        assert row["published_mean"] == pytest.approx(row["loss"], rel=1e-5), row
    trace = read_trace(ended.folder)
    assert trace.plan is not None
    replayed = replay(trace.plan, trace, whose="the run's")
    assert replayed.differences == ()
    assert {one.rule for one in replayed.decisions} == {"three_while_cheap"}
