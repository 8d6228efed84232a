"""Conservative backfilling: hand-computed cases, the plan made anew every time, and its promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from kungfu.schedule import Job, conservative_backfill, simulate, summary
from kungfu.schedule.rigid.conservative import Gaps, earliest_gap, with_reservation
from tests.schedule.instances import Instance, instances, rows, thorough


def _planned_by_counting(jobs: tuple[Job, ...], *, gpus: int) -> list[float]:
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


def test_a_job_overtakes_if_no_planned_start_moves() -> None:
    jobs = rows((0, 3, 10), (1, 4, 5), (2, 1, 8), (3, 1, 20))
    result = simulate(jobs, gpus=4, policy=conservative_backfill())
    assert result.start_s.tolist() == [0, 10, 2, 15]


def test_the_second_in_line_is_protected_too() -> None:
    jobs = rows((0, 2, 10), (1, 3, 10), (2, 4, 5), (3, 1, 30))
    result = simulate(jobs, gpus=4, policy=conservative_backfill())
    figures = summary(result)
    assert result.start_s.tolist() == [0, 10, 20, 25]
    assert (figures.overall.wait_s, figures.overall.jct_s, figures.makespan_s) == (12.25, 26, 55)


@pytest.mark.slow
@thorough
@given(instance=instances(most_jobs=8))
def test_planning_once_at_arrival_equals_counting_second_by_second(instance: Instance) -> None:
    result = simulate(instance.jobs, gpus=instance.gpus, policy=conservative_backfill())
    assert result.start_s.tolist() == _planned_by_counting(result.jobs, gpus=instance.gpus)


@pytest.mark.slow
@thorough
@given(instance=instances())
def test_no_later_arrival_moves_an_earlier_start(instance: Instance) -> None:
    everyone = simulate(instance.jobs, gpus=instance.gpus, policy=conservative_backfill())
    for count in range(1, len(instance.jobs)):
        fewer = simulate(everyone.jobs[:count], gpus=instance.gpus, policy=conservative_backfill())
        assert everyone.start_s[:count].tolist() == fewer.start_s.tolist()


def test_a_reservation_splits_the_gaps_where_it_starts_and_ends() -> None:
    gaps = with_reservation(Gaps(np.array([0.0, 4.0]), np.array([2, 4])), start_s=2.0, gpus=2, duration_s=3.0)
    assert gaps.time_s.tolist() == [0.0, 2.0, 4.0, 5.0]
    assert gaps.free.tolist() == [2, 0, 2, 4]
    assert earliest_gap(gaps, gpus=2, duration_s=2.0) == 0.0
    assert earliest_gap(gaps, gpus=3, duration_s=1.0) == 5.0
