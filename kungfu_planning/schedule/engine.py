"""The event-driven simulator of all policies.

Time jumps from event to event: an arrival, an end, or a wake-up time set by the policy. At each event, the simulator
ends jobs, adds arrivals, and applies one decision at once, so a job is adjusted at most once. Between events every
rate is constant, and progress is computed only for jobs whose GPUs change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kungfu.errors import InternalError, UsageError
from kungfu_planning.schedule.job import ClusterJob, arranged
from kungfu_planning.schedule.outcome import (
    SimulationRecord,
    SimulationResult,
    empty_record,
    finished_result,
    record_change,
    record_event,
)
from kungfu_planning.schedule.state import (
    ClusterPolicy,
    Floats,
    Ints,
    JobProgress,
    SchedulePlan,
    State,
    Workload,
    read_only,
    remaining_s,
    tabulated,
)

Watch = Callable[[State], None]
_EVENTS_AT_ONE_INSTANT = 10_000
_NOBODY: Ints = np.empty(0, dtype=np.int64)


def simulate(
    jobs: Sequence[ClusterJob],
    *,
    gpus: int,
    policy: ClusterPolicy[Any],
    pauses: Pauses | None = None,
    watch: Watch | None = None,
    keep_allocations: bool = False,
) -> SimulationResult:
    """Runs a trace through a policy on a simulated cluster of ``gpus`` equal GPUs.

    Args:
        jobs: sorted by arrival, names unique, none larger than the cluster.
        gpus: GPUs of the cluster, at least 1; GPUs are counted, without a topology.
        policy: decides at every event.
        pauses: the cost of adjusting a running job; nothing by default.
        keep_allocations: True if the result contains the number of GPUs of each job over time.
        watch: called after each event with the new state; the state's vectors are live views, to be copied if kept.

    Returns:
        The start, the end and the GPUs of each job, and the utilisation of the cluster over time.

    Raises:
        UsageError: ``jobs`` violates a rule above, or a plan has more GPUs than the cluster.
        InternalError: The policy leaves jobs waiting forever on an idle cluster, or time does not advance.

    Cost:
        One decision per event; 8 bytes of memory per GPU of the cluster for each different curve.

    >>> from kungfu_planning.schedule.cluster_policies.rigid import fifo
    >>> result = simulate([ClusterJob("a", 0, 2, 10.0), ClusterJob("b", 1, 2, 5.0)], gpus=2, policy=fifo())
    >>> [float(end) for end in result.finish_s]
    [10.0, 15.0]
    """
    jobs = arranged(jobs, gpus=gpus)
    workload = tabulated(jobs, gpus=gpus)
    simulation = Simulation(
        initial_progress(workload), empty_record(len(jobs), keep_allocations=keep_allocations), pauses or Pauses()
    )
    state = State(0.0, gpus, workload, read_only(simulation.progress), _NOBODY, _NOBODY, _NOBODY)
    memory, wake_s, submitted, repeats = policy.begin(workload, gpus), math.inf, 0, 0
    # Until there are no more arrivals, ends or wake-ups.
    while (moment := _next_moment(state, submitted=submitted, wake_s=wake_s)) < math.inf:
        repeats = _count_repeats(repeats, state=state, moment=moment)
        state = _end_and_arrive(state, simulation=simulation, now_s=moment, submitted=submitted)
        submitted += len(state.arrived)
        state = _with_running(state, simulation=simulation)
        plan, memory = policy.decide(state, memory)
        wake_s = plan.wake_s
        state = _after_plan(state, simulation=simulation, changed=apply_plan(plan, state=state, simulation=simulation))
        if watch is not None:
            watch(state)
    # No event is left that could start the waiting jobs.
    if len(state.pending):
        raise InternalError(f"{policy.name} leaves {len(state.pending)} jobs waiting for ever on an idle cluster")
    return finished_result(simulation.record, jobs=jobs, gpus=gpus, policy=policy.name)


def _next_moment(state: State, *, submitted: int, wake_s: float) -> float:
    """The time of the next arrival, end or wake-up, never before the present time; infinite if there is none."""
    arrivals = state.workload.submit_s
    arrival_s = float(arrivals[submitted]) if submitted < len(arrivals) else math.inf
    end_s = float(state.progress.end_s[state.running].min()) if len(state.running) else math.inf
    return max(state.now_s, min(arrival_s, end_s, wake_s))


def _count_repeats(repeats: int, *, state: State, moment: float) -> int:
    """The number of consecutive events at one instant; raises ``InternalError`` if time never advances again."""
    if moment > state.now_s:
        return 0
    if repeats > _EVENTS_AT_ONE_INSTANT:
        raise InternalError(f"time stands still at {moment} s: the policy asks to be woken again and again")
    return repeats + 1


def _end_and_arrive(state: State, *, simulation: Simulation, now_s: float, submitted: int) -> State:
    """The state for the policy's decision: ended jobs are removed first, then arrivals are added."""
    running, pending, arrived = state.running, state.pending, _NOBODY
    ended = running[state.progress.end_s[running] <= now_s]
    if len(ended):
        end_jobs(simulation, jobs=ended, now_s=now_s)
        running = running[state.progress.gpus[running] > 0]
    # Several jobs may arrive at one instant: the policy decides on all of them together.
    submit_s = state.workload.submit_s
    if submitted < len(submit_s) and submit_s[submitted] <= now_s:
        arrived = np.arange(submitted, np.searchsorted(submit_s, now_s, side="right"), dtype=np.int64)
        pending = np.concatenate((pending, arrived))
    # `dataclasses.replace` costs three times as much.
    return State(now_s, state.gpus, state.workload, state.progress, running, pending, arrived)


def _with_running(state: State, *, simulation: Simulation) -> State:
    """The state in which jobs that arrive as already running hold their requested GPUs, before the policy decides."""
    running = state.arrived[state.workload.runs[state.arrived]]
    if not len(running):
        return state
    plan = SchedulePlan(running, state.workload.gpus[running])
    return _after_plan(state, simulation=simulation, changed=apply_plan(plan, state=state, simulation=simulation))


def _after_plan(state: State, *, simulation: Simulation, changed: Ints) -> State:
    """The state after a plan has changed the GPUs of the jobs ``changed``."""
    held = state.progress.gpus
    # A preempted job waits again, in order of arrival, and a started job no longer waits.
    if len(changed):
        stopped = changed[held[changed] == 0]
        running = _union(state.running[held[state.running] > 0], changed[held[changed] > 0])
        pending = state.pending[held[state.pending] == 0]
        pending = _union(pending, stopped) if len(stopped) else pending
        state = State(state.now_s, state.gpus, state.workload, state.progress, running, pending, state.arrived)
    busy = int(held[state.running].sum())
    if busy > state.gpus:
        raise UsageError(f"the policy gave away {busy} GPUs of {state.gpus}: a plan must not exceed the cluster")
    record_event(simulation.record, now_s=state.now_s, busy=busy, pending=len(state.pending))
    return state


def _union(first: Ints, second: Ints) -> Ints:
    """The sorted union of two vectors of job indices, like ``np.union1d`` at a fraction of the cost."""
    both = np.sort(np.concatenate((first, second)))
    differs = np.ones(len(both), dtype=np.bool_)
    differs[1:] = both[1:] != both[:-1]
    return both[differs]


_LONGEST_S = 1e9


@dataclass(frozen=True)
class Pauses:
    """The costs of elasticity for a running job: seconds without progress at an adjustment, and a constant overhead.

    A job that is adjusted while paused waits until both pauses have ended. A job's first start costs nothing.

    Args:
        out_s: the pause when GPUs are added, 0 to 1e9.
        in_s: the pause when GPUs are removed, 0 to 1e9.
        overhead: the constant loss of throughput due to elasticity, as a fraction, 0 to 0.99.
        resume_s: the pause of a preempted job when it gets GPUs again, 0 to 1e9, to write and read its checkpoint. The
            published simulators use 0.

    Raises:
        UsageError: A value is outside its range.
    """

    out_s: float = 0.0
    in_s: float = 0.0
    overhead: float = 0.0
    resume_s: float = 0.0

    def __post_init__(self) -> None:
        pauses = (self.out_s, self.in_s, self.resume_s)
        if not (all(0 <= pause <= _LONGEST_S for pause in pauses) and 0 <= self.overhead <= 0.99):
            raise UsageError(f"{self}: pauses must be 0 to {_LONGEST_S:g} s, the overhead 0 to 0.99")


@dataclass(frozen=True)
class Simulation:
    """The state of the engine: the progress of each job and the record so far, both mutable, and the pauses."""

    progress: JobProgress
    record: SimulationRecord
    pauses: Pauses


def initial_progress(workload: Workload) -> JobProgress:
    """The progress of all jobs before their start."""
    count = len(workload.gpus)
    return JobProgress(
        gpus=np.zeros(count, dtype=np.int64),
        remaining_s=workload.duration_s.copy(),
        since_s=np.zeros(count),
        speed=np.zeros(count),
        end_s=np.full(count, math.inf),
        finished=np.zeros(count, dtype=np.bool_),
    )


def end_jobs(simulation: Simulation, *, jobs: Ints, now_s: float) -> None:
    """Ends jobs whose work is done, and frees their GPUs."""
    progress = simulation.progress
    record_change(simulation.record, jobs=jobs, before=progress.gpus[jobs], after=np.zeros_like(jobs), now_s=now_s)
    simulation.record.finish_s[jobs] = now_s
    progress.gpus[jobs] = 0
    progress.remaining_s[jobs] = 0.0
    progress.speed[jobs] = 0.0
    progress.end_s[jobs] = math.inf
    progress.finished[jobs] = True


def apply_plan(plan: SchedulePlan, *, state: State, simulation: Simulation) -> Ints:
    """Gives each job of a plan its new number of GPUs, and returns the indices of the jobs whose number changed.

    Raises:
        UsageError: The plan has a negative number of GPUs, or gives GPUs to a job that has ended.
    """
    changed = plan.gpus != state.progress.gpus[plan.jobs]
    jobs: Ints = plan.jobs[changed]
    after: Ints = plan.gpus[changed]
    if not len(jobs):  # the plan changes no job
        return jobs
    progress = simulation.progress
    if after.min() < 0 or progress.finished[jobs].any():
        raise UsageError(
            f"the policy gave {after.tolist()} GPUs to jobs {jobs.tolist()}: give 0 or more, to living jobs"
        )
    before = progress.gpus[jobs]
    resumes = (before == 0) & ~np.isnan(simulation.record.start_s[jobs])
    record_change(simulation.record, jobs=jobs, before=before, after=after, now_s=state.now_s)
    # First account for the work done at the old speed; the new speed counts from now on.
    progress.remaining_s[jobs] = remaining_s(state, jobs=jobs)
    progress.since_s[jobs] = _progress_from_s(
        before, after=after, state=state, jobs=jobs, resumes=resumes, pauses=simulation.pauses
    )
    progress.gpus[jobs] = after
    progress.speed[jobs] = _speed(state.workload, jobs=jobs, gpus=after) * (1.0 - simulation.pauses.overhead)
    _set_ends(progress, jobs=jobs)
    return jobs


def _progress_from_s(
    before: Ints, *, after: Ints, state: State, jobs: Ints, resumes: npt.NDArray[np.bool_], pauses: Pauses
) -> Floats:
    """The time from which each job makes progress: now for a first start or a stop, else the end of the job's pause."""
    adjusted_s = state.now_s + np.where(after > before, pauses.out_s, pauses.in_s)
    adjusted_s = np.maximum(adjusted_s, state.progress.since_s[jobs])
    waiting_s = state.now_s + np.where(resumes, pauses.resume_s, 0.0)
    from_s: Floats = np.where((before > 0) & (after > 0), adjusted_s, np.where(after > 0, waiting_s, state.now_s))
    return from_s


def _speed(workload: Workload, *, jobs: Ints, gpus: Ints) -> Floats:
    """The throughput of each job on ``gpus`` GPUs, divided by its throughput on the GPUs that its user requested."""
    kind = workload.kind[jobs]
    speed: Floats = workload.rates[kind, gpus] / workload.rates[kind, workload.gpus[jobs]]
    return speed


def _set_ends(progress: JobProgress, *, jobs: Ints) -> None:
    runs = jobs[progress.gpus[jobs] > 0]
    progress.end_s[jobs] = math.inf
    progress.end_s[runs] = progress.since_s[runs] + progress.remaining_s[runs] / progress.speed[runs]
