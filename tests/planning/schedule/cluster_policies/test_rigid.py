"""FIFO, first fit, EASY and conservative backfilling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu_planning.schedule import (
    ClusterJob,
    ClusterPolicy,
    conservative_backfill,
    easy_backfill,
    fifo,
    simulate,
)
from kungfu_planning.schedule.cluster_policies.rigid import (
    Shadow,
    first_fit_mask,
    prefix_that_fits,
    shadow_time,
)
from tests.planning.schedule.auditor import seen
from tests.planning.schedule.instances import Instance, instances, rows

EASY, CONSERVATIVE = easy_backfill(), conservative_backfill()
# By hand: the GPUs of the cluster, jobs as (submit, GPUs, duration), and when each job starts.
BY_HAND = {
    "who ends by the shadow time overtakes": (EASY, 4, [(0, 3, 10), (1, 4, 5), (2, 1, 8), (3, 1, 20)], [0, 10, 2, 15]),
    "who would end later does not": (EASY, 4, [(0, 3, 10), (1, 4, 5), (2, 1, 9), (3, 1, 20)], [0, 10, 15, 15]),
    # Two GPUs are spare when the head starts at 10; job 2 takes both, so job 3 may not start on the last free one.
    "spare GPUs are given away once": (EASY, 6, [(0, 3, 10), (1, 4, 10), (2, 2, 30), (2, 1, 30)], [0, 10, 2, 20]),
}


@pytest.mark.parametrize(("policy", "gpus", "cells", "starts"), BY_HAND.values(), ids=BY_HAND)
def test_jobs_start_as_worked_out_by_hand(policy: ClusterPolicy, gpus: int, cells: list, starts: list[float]) -> None:
    assert simulate(rows(*cells), gpus=gpus, policy=policy).start_s.tolist() == starts


@pytest.mark.slow
@given(instance=instances())
def test_fifo_starts_jobs_in_order_and_only_the_head_may_be_too_large(instance: Instance) -> None:
    states = seen(instance.jobs, gpus=instance.gpus, policy=fifo())
    for state in states:
        free = state.gpus - state.progress.gpus.sum()
        assert not len(state.pending) or state.workload.gpus[state.pending[0]] > free
        assert not len(state.pending) or state.running.max(initial=-1) < state.pending[0]


sizes = st.lists(st.integers(1, 6), max_size=12)


@given(wanted=sizes, free=st.integers(0, 20))
def test_first_fit_serves_whom_the_plain_loop_does_and_the_prefix_ends_where_it_must(
    wanted: list[int], free: int
) -> None:
    """First fit serves exactly whom the plain loop serves, and the prefix ends at the first that does not fit."""
    left, served = free, []
    for size in wanted:
        served.append(size <= left)
        left -= size if size <= left else 0
    assert first_fit_mask(np.array(wanted, dtype=np.int64), free=free).tolist() == served

    count = prefix_that_fits(np.array(wanted, dtype=np.int64), free=free)
    assert sum(wanted[:count]) <= free
    assert count == len(wanted) or sum(wanted[: count + 1]) > free


def test_the_shadow_counts_all_who_end_at_that_time() -> None:
    ends = np.array([5.0, 7.0, 7.0])
    assert shadow_time(ends, sizes=np.array([1, 2, 3]), free=1, wanted=3) == Shadow(7.0, 4)


@pytest.mark.slow
@given(instance=instances())
def test_the_head_starts_as_promised_and_nobody_waits_who_would_not_delay_it(instance: Instance) -> None:
    """The head never starts after any shadow time it was promised, and all start who do not delay it."""
    promised: dict[int, float] = {}
    for state in seen(instance.jobs, gpus=instance.gpus, policy=easy_backfill()):
        for job in state.running.tolist():
            assert state.now_s <= promised.pop(job, np.inf)
        if len(state.pending):
            head, free = int(state.pending[0]), int(state.gpus - state.progress.gpus.sum())
            sizes = state.progress.gpus[state.running]
            wanted = int(state.workload.gpus[head])
            assert wanted > free
            limit = shadow_time(state.progress.end_s[state.running], sizes=sizes, free=free, wanted=wanted)
            promised[head] = min(promised.get(head, np.inf), limit.time_s)
            for job in state.pending[1:]:
                size = state.workload.gpus[job]
                ends_in_time = state.now_s + state.workload.duration_s[job] <= limit.time_s
                assert size > free or not (ends_in_time or size <= limit.spare)


def _planned_by_counting(jobs: tuple[ClusterJob, ...], *, gpus: int) -> list[float]:
    """Each job, in order, at the first whole second from which enough GPUs stay free: whole seconds only."""
    used = np.zeros(1000, dtype=int)
    starts = []
    for job in jobs:
        runs, at = int(job.duration_s), int(job.submit_s)
        while used[at : at + runs].max() + job.gpus > gpus:
            at += 1
        used[at : at + runs] += job.gpus
        starts.append(float(at))
    return starts


@pytest.mark.slow
@given(instance=instances(most_jobs=8))
def test_planning_once_at_arrival_equals_counting_second_by_second(instance: Instance) -> None:
    result = simulate(instance.jobs, gpus=instance.gpus, policy=conservative_backfill())
    assert result.start_s.tolist() == _planned_by_counting(result.jobs, gpus=instance.gpus)
