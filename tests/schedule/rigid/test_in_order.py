"""FIFO and first fit: hand-computed cases and what they promise at every event."""

from __future__ import annotations

import pytest
from hypothesis import given

from kungfu.schedule import fifo, first_fit, simulate, summary
from tests.schedule.auditor import seen
from tests.schedule.instances import Instance, instances, rows, thorough


def test_strict_fifo_lets_nobody_pass_the_head() -> None:
    result = simulate(rows((0, 3, 10), (1, 2, 10), (2, 1, 5)), gpus=4, policy=fifo())
    assert (result.finish_s - [0, 1, 2]).tolist() == [10, 19, 13]
    assert summary(result).overall.jct_s == 14


def test_first_fit_lets_a_small_job_pass() -> None:
    result = simulate(rows((0, 3, 10), (1, 2, 10), (2, 1, 5)), gpus=4, policy=first_fit())
    assert result.start_s.tolist() == [0, 10, 2]
    assert summary(result).overall.jct_s == pytest.approx(34 / 3)


def test_four_jobs_in_line_start_one_after_the_other() -> None:
    result = simulate(rows((0, 3, 10), (1, 4, 5), (2, 1, 8), (3, 1, 20)), gpus=4, policy=fifo())
    figures = summary(result)
    assert result.start_s.tolist() == [0, 10, 15, 15]
    assert (figures.overall.wait_s, figures.overall.jct_s, figures.makespan_s) == (8.5, 19.25, 35)


@pytest.mark.slow
@thorough
@given(instance=instances())
def test_fifo_starts_jobs_in_order_and_only_the_head_may_be_too_large(instance: Instance) -> None:
    states = seen(instance.jobs, gpus=instance.gpus, policy=fifo())
    for state in states:
        free = state.gpus - state.progress.gpus.sum()
        assert not len(state.pending) or state.workload.gpus[state.pending[0]] > free
        assert not len(state.pending) or state.running.max(initial=-1) < state.pending[0]


@pytest.mark.slow
@thorough
@given(instance=instances())
def test_first_fit_leaves_no_gpus_idle_that_a_waiting_job_could_use(instance: Instance) -> None:
    for state in seen(instance.jobs, gpus=instance.gpus, policy=first_fit()):
        free = state.gpus - state.progress.gpus.sum()
        assert (state.workload.gpus[state.pending] > free).all()
