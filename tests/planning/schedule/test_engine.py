"""What holds for every policy, and what the simulator refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from kungfu.errors import InternalError, UsageError
from kungfu_planning.schedule import ClusterJob, Pauses, SchedulePlan, SimulationResult, fifo, simulate, summary
from kungfu_planning.schedule.cluster_policies.catalogue import CATALOGUE, Tuning
from kungfu_planning.schedule.curve import rate_at, rates_up_to
from kungfu_planning.schedule.state import stateless
from tests.planning.schedule.auditor import Audit, audited
from tests.planning.schedule.instances import Instance, instances, rows

POLICIES = sorted(CATALOGUE)
WITHOUT_UNIT = {"fifo", "first-fit", "easy", "conservative", "efifo", "ebf"}
TUNING = Tuning(quanta=(12.0, 40.0), starvation=2.0)


def _pauses(name: str) -> Pauses:
    return Pauses(1.5, 0.25, 0.02) if CATALOGUE[name].pauses else Pauses()


@dataclass(frozen=True)
class _Bounds:
    """What an instance demands of any schedule: the work of each job, its least seconds, and GPU seconds of all."""

    work: list[float]
    least_s: list[float]
    least_gpu_s: float


def _bounds(instance: Instance) -> _Bounds:
    work, least_s, least_gpu_s = [], [], 0.0
    for job in instance.jobs:
        work.append(job.duration_s * rate_at(job.curve, gpus=job.gpus))
        rates = rates_up_to(job.curve, gpus=instance.gpus)[1:]
        least_s.append(float(work[-1] / rates.max()))
        least_gpu_s += float(work[-1] / (rates / np.arange(1, instance.gpus + 1)).max())
    return _Bounds(work, least_s, least_gpu_s)


@pytest.mark.slow
@given(instance=instances())
def test_every_job_does_exactly_its_work_all_books_agree_and_time_has_no_unit(instance: Instance) -> None:
    """Every job does exactly its work under every policy, all books agree, and without pauses time has no unit."""
    bounds = _bounds(instance)
    slower = [replace(job, submit_s=job.submit_s * 4, duration_s=job.duration_s * 4) for job in instance.jobs]
    for name in POLICIES:
        note(f"policy {name}")
        pauses = _pauses(name)
        result, audit = audited(instance.jobs, gpus=instance.gpus, policy=CATALOGUE[name].make(TUNING), pauses=pauses)
        _assert_books_agree(result, audit=audit, bounds=bounds)
        if name in WITHOUT_UNIT:
            if pauses != Pauses():
                result = simulate(instance.jobs, gpus=instance.gpus, policy=CATALOGUE[name].make(TUNING))
            scaled = simulate(slower, gpus=instance.gpus, policy=CATALOGUE[name].make(TUNING))
            assert (result.start_s * 4).tolist() == scaled.start_s.tolist()
            assert (result.finish_s * 4).tolist() == scaled.finish_s.tolist()


def _assert_books_agree(result: SimulationResult, *, audit: Audit, bounds: _Bounds) -> None:
    assert audit.work == pytest.approx(bounds.work, rel=1e-6)
    for end_s, job, least_s in zip(result.finish_s.tolist(), audit.jobs, bounds.least_s, strict=True):
        assert end_s - job.submit_s >= least_s * (1 - 1e-9)
    assert summary(result).makespan_s >= bounds.least_gpu_s / result.gpus * (1 - 1e-9)
    assert result.usage.gpu_seconds == pytest.approx(audit.gpu_seconds)
    assert result.usage.adjustments.tolist() == audit.changes
    busy = result.timeline.busy[:-1] * np.diff(result.timeline.time_s)
    assert busy.sum() == pytest.approx(sum(audit.gpu_seconds))
    assert result.timeline.busy.max() <= result.gpus
    assert result.timeline.busy[-1] == 0
    assert result.timeline.pending[-1] == 0


@pytest.mark.slow
@given(instance=instances(last_s=3), order=st.integers(0, 2**32))
def test_the_order_of_simultaneous_rows_changes_nothing(instance: Instance, order: int) -> None:
    shuffled = list(instance.jobs)
    Random(order).shuffle(shuffled)
    shuffled.sort(key=lambda job: job.submit_s)
    for name in ("elastic-tiresias", "ebf"):
        note(f"policy {name}")
        ends = []
        for jobs in (instance.jobs, shuffled):
            result = simulate(jobs, gpus=instance.gpus, policy=CATALOGUE[name].make(TUNING), pauses=Pauses(1.0, 1.0))
            ends.append({job.name: float(end) for job, end in zip(result.jobs, result.finish_s, strict=True)})
        assert ends[0] == ends[1]


RUNNING = (
    ClusterJob("a", 0, 1, 100.0, runs=True),
    ClusterJob("b", 5, 1, 100.0, runs=True),
    ClusterJob("c", 10, 1, 100.0),
    ClusterJob("d", 11, 1, 100.0, runs=True),
)


@pytest.mark.parametrize(
    ("jobs", "gpus", "says"),
    [
        ((), 4, "the trace is empty"),
        (rows((0, 1, 1.0)), 0, "a cluster of 0 GPUs"),
        (rows((0, 1, 1.0)), 10**9, "a cluster of 1000000000 GPUs cannot be simulated: give 1 to 1,048,576"),
        (rows((0, 8, 1.0)), 4, "job 0 asks for 8 GPUs and the cluster has 4"),
        (rows((5, 1, 1.0), (3, 1, 1.0)), 4, "job 1 at 3 s stands after job 0 at 5 s"),
        ((ClusterJob("a", 0, 1, 1.0), ClusterJob("a", 1, 1, 1.0)), 4, "two jobs are called 'a'"),
        (RUNNING[:2], 4, "job b is said to run already when it arrives at 5 s, after another has arrived at 0 s"),
        (RUNNING, 4, "jobs that run already must all arrive at the trace's beginning; give them its earliest time"),
        (RUNNING[2:], 4, "job d is said to run already"),
    ],
)
def test_a_trace_that_cannot_be_simulated_is_refused_with_its_reason(jobs, gpus, says) -> None:
    with pytest.raises(UsageError, match=says):
        simulate(jobs, gpus=gpus, policy=fifo())


def test_a_plan_that_exceeds_the_cluster_is_refused() -> None:
    greedy = stateless("greedy", decide=lambda state: SchedulePlan(state.pending, state.workload.gpus[state.pending]))
    with pytest.raises(UsageError, match="gave away 4 GPUs of 2"):
        simulate(rows((0, 2, 1.0), (0, 2, 1.0)), gpus=2, policy=greedy)


def test_a_plan_for_a_job_that_has_ended_is_refused() -> None:
    stubborn = stateless("stubborn", decide=lambda state: SchedulePlan(np.array([0]), np.array([1])))
    with pytest.raises(UsageError, match="to living jobs"):
        simulate(rows((0, 1, 1.0), (5, 1, 1.0)), gpus=2, policy=stubborn)


def test_a_policy_that_starts_nothing_is_found_out() -> None:
    idle = stateless("idle", decide=lambda state: SchedulePlan(state.pending[:0], state.pending[:0]))
    with pytest.raises(InternalError, match="idle leaves 1 jobs waiting"):
        simulate(rows((0, 1, 1.0)), gpus=2, policy=idle)


def test_a_policy_that_never_lets_time_pass_is_stopped() -> None:
    restless = stateless(
        "restless", decide=lambda state: SchedulePlan(state.pending[:0], state.pending[:0], state.now_s)
    )
    with pytest.raises(InternalError, match="time stands still"):
        simulate(rows((0, 1, 1.0)), gpus=2, policy=restless)


def test_policies_cannot_write_what_they_see() -> None:
    def meddle(state):
        state.progress.gpus[0] = 7

    with pytest.raises(ValueError, match="read-only"):
        simulate(rows((0, 1, 1.0)), gpus=2, policy=stateless("meddler", decide=meddle))


def test_a_pause_delays_and_a_second_one_during_it_does_not_add_up() -> None:
    sizes = {0.0: 1, 1.0: 2, 2.0: 4}

    def grow(state):
        return SchedulePlan(
            np.array([0]), np.array([sizes[state.now_s]]), state.now_s + 1 if state.now_s < 2 else np.inf
        )

    policy = stateless(
        "growing", decide=lambda s: grow(s) if len(s.running) or len(s.pending) else SchedulePlan(s.running, s.running)
    )
    result = simulate(rows((0, 4, 10.25)), gpus=4, policy=policy, pauses=Pauses(3.0))
    # 1 GPU second of 41 in the first second; paused from 1 to 4, then from 2 to 5; the other 40 on 4 GPUs from 5.
    assert result.finish_s.tolist() == [15.0]
    assert result.usage.gpu_seconds.tolist() == [1 + 2 + 4 * 13]
    assert result.usage.adjustments.tolist() == [2]


@pytest.mark.parametrize(
    "wrong",
    [{"out_s": -1.0}, {"in_s": float("nan")}, {"out_s": 1e300}, {"overhead": 1.0}, {"overhead": -0.1}],
)
def test_pauses_and_overheads_outside_their_ranges_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"pauses must be 0 to 1e\+09 s, the overhead 0 to 0\.99"):
        Pauses(**wrong)
