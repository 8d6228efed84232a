"""Tiresias with rigid jobs: hand-computed, and equal to a literal simulator on random traces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.schedule import fifo, simulate, summary, tiresias
from tests.schedule.auditor import seen
from tests.schedule.instances import Instance, instances, rows, thorough
from tests.schedule.tiresias.reference import reference


def test_a_job_that_used_up_its_quantum_makes_room_for_a_newer_one() -> None:
    jobs = rows((0, 2, 100), (10, 2, 20))
    result = simulate(jobs, gpus=2, policy=tiresias(quanta=(60,)))
    assert result.start_s.tolist() == [0, 30]
    assert result.finish_s.tolist() == [120, 50]
    assert summary(result).overall.jct_s == 80
    assert summary(simulate(jobs, gpus=2, policy=fifo())).overall.jct_s == 105


def test_without_quanta_tiresias_is_first_fit_in_order_of_arrival() -> None:
    result = simulate(rows((0, 3, 10), (1, 2, 10), (2, 1, 5)), gpus=4, policy=tiresias(quanta=()))
    assert result.start_s.tolist() == [0, 10, 2]
    assert summary(result).overall.jct_s == pytest.approx(34 / 3)


def test_a_wide_job_sinks_when_its_gpu_seconds_are_used_up_and_not_later() -> None:
    # 64 GPUs use up 10,000 GPU seconds in 156.25 s, so after 157 whole ones; then the waiting job runs.
    result = simulate(rows((0, 64, 1000), (1, 64, 10)), gpus=64, policy=tiresias())
    assert result.start_s.tolist() == [0, 157]


def test_a_starving_job_rises_above_those_who_come_later() -> None:
    # Job 0 sinks at 10 and waits; at 30 it has waited twice the 10 s it had run, and rises behind job 3, before job 4.
    jobs = rows((0, 1, 20), (5, 1, 10), (12, 1, 10), (22, 1, 10), (32, 1, 10))
    patient = simulate(jobs, gpus=1, policy=tiresias(quanta=(10,)))
    starved = simulate(jobs, gpus=1, policy=tiresias(quanta=(10,), starvation=2.0))
    assert patient.finish_s.tolist() == [60, 20, 30, 40, 50]
    assert starved.finish_s.tolist() == [50, 20, 30, 40, 60]


def test_rounding_of_times_makes_no_job_sink_a_second_late() -> None:
    begin = 6.4
    assert (begin + 10) - begin < 10
    result = simulate(rows((begin, 1, 100), (begin, 1, 10)), gpus=1, policy=tiresias(quanta=(10,)))
    assert result.start_s.tolist() == [begin, begin + 10]


def test_a_starving_job_rises_on_time_also_between_whole_seconds() -> None:
    # The first has run 10 s when it sinks at 10.5, so it may wait 5 s. Asked at 12.25, it is looked at again 4 s later:
    # at 16.25 it rises, before the last one arrives. Nothing else happens until then.
    jobs = rows((0.5, 1, 20), (0.5, 1, 10), (12.25, 1, 15), (17, 1, 10))
    result = simulate(jobs, gpus=1, policy=tiresias(quanta=(10,), starvation=0.5))
    assert result.start_s.tolist() == [0.5, 10.5, 20.5, 40.5]


@pytest.mark.slow
@thorough
@given(instance=instances(most_jobs=8), starvation=st.sampled_from([None, 0.5, 1.0, 2.0, 3.5]))
def test_ends_equal_those_of_the_literal_simulator(instance: Instance, starvation: float | None) -> None:
    result = simulate(instance.jobs, gpus=instance.gpus, policy=tiresias(quanta=(12, 40), starvation=starvation))
    expected = reference(result.jobs, gpus=instance.gpus, quanta=(12, 40), starvation=starvation)
    assert {job.name: end for job, end in zip(result.jobs, result.finish_s, strict=True)} == expected


@pytest.mark.slow
@thorough
@given(instance=instances())
def test_no_gpus_idle_that_a_waiting_job_could_use(instance: Instance) -> None:
    for state in seen(instance.jobs, gpus=instance.gpus, policy=tiresias(quanta=(12, 40))):
        free = state.gpus - state.progress.gpus.sum()
        assert (state.workload.gpus[state.pending] > free).all()


@pytest.mark.parametrize("quanta", [(0.0,), (5.0, 5.0), (7.0, 3.0)])
def test_quanta_that_do_not_rise_are_refused(quanta) -> None:
    with pytest.raises(UsageError, match="must rise"):
        tiresias(quanta=quanta)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_starvation_factor_that_is_nothing_or_endless_is_refused(factor: float) -> None:
    with pytest.raises(UsageError, match=f"starvation factor {factor} must be above 0 and finite"):
        tiresias(starvation=factor)
