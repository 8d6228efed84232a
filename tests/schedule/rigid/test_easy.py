"""EASY backfilling: hand-computed cases, and the head's protection."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from kungfu.schedule import easy_backfill, simulate, summary
from kungfu.schedule.rigid.easy import Shadow, shadow
from tests.schedule.auditor import seen
from tests.schedule.instances import Instance, instances, rows, thorough


def test_a_job_that_ends_by_the_shadow_time_overtakes() -> None:
    result = simulate(rows((0, 3, 10), (1, 4, 5), (2, 1, 8), (3, 1, 20)), gpus=4, policy=easy_backfill())
    figures = summary(result)
    assert result.start_s.tolist() == [0, 10, 2, 15]
    assert (figures.overall.wait_s, figures.overall.jct_s, figures.makespan_s) == (5.25, 16, 35)


def test_a_job_that_would_end_later_does_not() -> None:
    result = simulate(rows((0, 3, 10), (1, 4, 5), (2, 1, 9), (3, 1, 20)), gpus=4, policy=easy_backfill())
    assert result.start_s.tolist() == [0, 10, 15, 15]


def test_a_job_on_spare_gpus_overtakes_though_it_delays_the_second_in_line() -> None:
    result = simulate(rows((0, 2, 10), (1, 3, 10), (2, 4, 5), (3, 1, 30)), gpus=4, policy=easy_backfill())
    figures = summary(result)
    assert result.start_s.tolist() == [0, 10, 33, 3]
    assert (figures.overall.wait_s, figures.overall.jct_s, figures.makespan_s) == (10, 23.75, 38)


def test_gpus_that_are_spare_at_the_shadow_time_are_given_away_once() -> None:
    # Two GPUs are spare when the head starts at 10; job 2 takes both, so job 3 may not start on the last free one.
    jobs = rows((0, 3, 10), (1, 4, 10), (2, 2, 30), (2, 1, 30))
    assert simulate(jobs, gpus=6, policy=easy_backfill()).start_s.tolist() == [0, 10, 2, 20]


def test_the_shadow_counts_all_who_end_at_that_time() -> None:
    ends = np.array([5.0, 7.0, 7.0])
    assert shadow(ends, sizes=np.array([1, 2, 3]), free=1, wanted=3) == Shadow(7.0, 4)


@pytest.mark.slow
@thorough
@given(instance=instances())
def test_the_head_never_starts_after_any_shadow_time_it_was_promised(instance: Instance) -> None:
    promised: dict[int, float] = {}
    for state in seen(instance.jobs, gpus=instance.gpus, policy=easy_backfill()):
        for job in state.running.tolist():
            assert state.now_s <= promised.pop(job, np.inf)
        if len(state.pending):
            head, free = int(state.pending[0]), int(state.gpus - state.progress.gpus.sum())
            sizes = state.progress.gpus[state.running]
            wanted = int(state.workload.gpus[head])
            assert wanted > free
            limit = shadow(state.progress.end_s[state.running], sizes=sizes, free=free, wanted=wanted)
            promised[head] = min(promised.get(head, np.inf), limit.time_s)


@pytest.mark.slow
@thorough
@given(instance=instances())
def test_nobody_is_left_behind_who_could_start_without_delaying_the_head(instance: Instance) -> None:
    for state in seen(instance.jobs, gpus=instance.gpus, policy=easy_backfill()):
        if len(state.pending) > 1:
            work, free = state.workload, int(state.gpus - state.progress.gpus.sum())
            sizes = state.progress.gpus[state.running]
            wanted = int(work.gpus[state.pending[0]])
            limit = shadow(state.progress.end_s[state.running], sizes=sizes, free=free, wanted=wanted)
            for job in state.pending[1:]:
                ends_in_time = state.now_s + work.duration_s[job] <= limit.time_s
                assert work.gpus[job] > free or not (ends_in_time or work.gpus[job] <= limit.spare)
