"""The allocation rule by hand, and sets of running jobs that time passes for."""

from __future__ import annotations

import numpy as np
import pytest

from kungfu_planning.schedule import ClusterJob, Curve, elastic_fifo, simulate
from kungfu_planning.schedule.cluster_policies.elan_forecast import (
    RunningJobs,
    after,
    allocated,
    joined,
    left_s,
    prepared,
)
from kungfu_planning.schedule.state import tabulated
from tests.planning.schedule.auditor import seen
from tests.planning.schedule.instances import rows

A = ClusterJob("A", 0, 1, 72.0, Curve((1, 2, 3, 4), (10.0, 18.0, 24.0, 28.0)), 1, 4)
B = ClusterJob("B", 0, 2, 68.0, Curve((2, 3, 4, 5, 6), (20.0, 28.0, 34.0, 38.0, 40.0)), 2, 6)


def test_eight_gpus_are_shared_by_saved_time_and_again_when_one_job_ends() -> None:
    states = seen((A, B), gpus=8, policy=elastic_fifo())
    assert [state.progress.gpus.tolist() for state in states] == [[4, 4], [0, 6], [0, 0]]
    result = simulate((A, B), gpus=8, policy=elastic_fifo())
    assert result.finish_s.tolist() == pytest.approx([720 / 28, 720 / 28 + (1360 - 34 * 720 / 28) / 40])
    assert result.finish_s.tolist() == pytest.approx([25.714, 37.857], abs=1e-3)


def test_sharing_stops_at_a_dip_even_if_two_more_gpus_would_help() -> None:
    dip = ClusterJob("dip", 0, 1, 10.0, Curve((1, 2, 3), (10.0, 10.0, 40.0)), 1, 3)
    assert seen((dip,), gpus=3, policy=elastic_fifo())[0].progress.gpus.tolist() == [1]


def test_a_newcomer_stands_in_order_of_arrival_on_its_fewest_gpus() -> None:
    context = prepared(tabulated(rows((0, 2, 10), (1, 2, 20), (2, 2, 30)), gpus=6), 6)
    running = joined(RunningJobs(np.array([0, 2]), np.array([20.0, 60.0]), np.array([3, 3])), job=1, context=context)
    assert (running.jobs.tolist(), running.work.tolist(), running.held.tolist()) == ([0, 1, 2], [20, 40, 60], [3, 1, 3])
    assert allocated(running, context=context).held.sum() == 6


def test_those_who_are_done_leave_and_the_others_have_less_to_do() -> None:
    context = prepared(tabulated(rows((0, 1, 10), (0, 1, 20)), gpus=4), 4)
    running = RunningJobs(np.array([0, 1]), np.array([10.0, 20.0]), np.array([2, 1]))
    left = left_s(running, context=context)
    assert left.tolist() == [5, 20]
    later = after(running, seconds=5.0, left=left, context=context)
    assert (later.jobs.tolist(), later.work.tolist()) == ([1], [15])
