"""Rigid policies: a job runs on exactly the GPUs it requested, from its start to its end.

FIFO and first fit use only the number of free GPUs. EASY backfilling reserves GPUs for the head of the queue only. The
head's *shadow time* is the earliest time at which the running jobs leave enough GPUs for the head. A later job may
start now if it ends by that time, or uses only GPUs that are spare at that time. Conservative backfilling reserves GPUs
for every job, and no later job may move a reservation. Run times are known exactly, so no job ends early and a
reservation never improves. Each job is planned once, at its arrival, into the earliest gap between earlier
reservations. (Planning all jobs again at every event gives the same starts, as a test shows, at many times the cost.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kungfu_planning.schedule.state import ClusterPolicy, Floats, Ints, SchedulePlan, State, Workload, stateless


def free_gpus(state: State) -> int:
    """The number of GPUs that no running job holds."""
    return state.gpus - int(state.progress.gpus[state.running].sum())


def fifo() -> ClusterPolicy[None]:
    """Starts jobs in order of arrival, until one does not fit into the free GPUs; no job overtakes it. No preemption.

    Cost:
        Amortised constant work per job, and one prefix sum over the waiting jobs.
    """
    return stateless("fifo", decide=_fifo)


def first_fit() -> ClusterPolicy[None]:
    """Starts, in order of arrival, every waiting job that fits into the free GPUs. No preemption.

    The head of the queue can starve while small jobs overtake it; backfilling prevents this.
    """
    return stateless("first-fit", decide=_first_fit)


def _fifo(state: State) -> SchedulePlan:
    head = state.pending[: state.gpus]  # no more jobs than GPUs can start at once
    sizes = state.workload.gpus[head]
    return _starting(state, head[: prefix_that_fits(sizes, free=free_gpus(state))])


def _first_fit(state: State) -> SchedulePlan:
    sizes = state.workload.gpus[state.pending]
    return _starting(state, state.pending[first_fit_mask(sizes, free=free_gpus(state))])


def _starting(state: State, jobs: Ints) -> SchedulePlan:
    return SchedulePlan(jobs, state.workload.gpus[jobs])


def prefix_that_fits(sizes: Ints, *, free: int) -> int:
    """The number of leading requests that fit together; the first request that does not fit blocks all later ones.

    Args:
        sizes: GPUs of each request, in order.
        free: GPUs that are free.

    >>> prefix_that_fits(np.array([2, 1, 4, 1]), free=4)
    2
    """
    return int(np.searchsorted(np.cumsum(sizes), free, side="right"))


def first_fit_mask(sizes: Ints, *, free: int) -> npt.NDArray[np.bool_]:
    """True for each request that runs, if each request in turn gets its GPUs or is skipped.

    A request that does not fit is larger than the free GPUs, so all requests of at least that size are skipped with it.
    So there are at most as many rounds as different sizes, each a prefix sum over the remaining requests.

    Args:
        sizes: GPUs of each request, in order.
        free: GPUs that are free.

    >>> first_fit_mask(np.array([3, 2, 1]), free=4).tolist()
    [True, False, True]
    """
    chosen = np.zeros(len(sizes), dtype=np.bool_)
    left = np.flatnonzero(sizes <= free)
    while len(left):
        # All requests before the first that does not fit run; all requests larger than the remaining GPUs are skipped.
        totals = np.cumsum(sizes[left])
        fitting = int(np.searchsorted(totals, free, side="right"))
        chosen[left[:fitting]] = True
        if fitting:
            free -= int(totals[fitting - 1])
        left = left[fitting + 1 :]
        left = left[sizes[left] <= free]
    return chosen


@dataclass(frozen=True)
class Shadow:
    """The shadow time of the head of the queue, and the number of GPUs that the head leaves free at that time."""

    time_s: float
    spare: int


def easy_backfill() -> ClusterPolicy[None]:
    """FIFO, but a job may overtake if the head of the queue can still start once running jobs leave it enough GPUs.

    Cost:
        Per event, a sort of the running jobs' ends and a pass over the waiting jobs that are small enough.
    """
    return stateless("easy", decide=_easy)


def shadow_time(ends_s: Floats, *, sizes: Ints, free: int, wanted: int) -> Shadow:
    """The shadow time of the head of the queue, and the GPUs spare then, computed from the ends of the running jobs.

    Args:
        ends_s: Ends of the running jobs, seconds.
        sizes: GPUs of each running job.
        free: GPUs that are free now.
        wanted: GPUs that the head of the queue requests, more than are free.

    >>> shadow_time(np.array([10.0, 5.0]), sizes=np.array([3, 1]), free=0, wanted=2)
    Shadow(time_s=10.0, spare=2)
    """
    # GPUs become free in the order of the ends.
    order = np.argsort(ends_s, kind="stable")
    released = free + np.cumsum(sizes[order])
    time_s = float(ends_s[order[np.searchsorted(released, wanted)]])
    there = free + int(sizes[ends_s <= time_s].sum())
    return Shadow(time_s, there - wanted)


def _easy(state: State) -> SchedulePlan:
    work = state.workload
    free = free_gpus(state)
    count = prefix_that_fits(work.gpus[state.pending[: state.gpus]], free=free)
    started, waiting = state.pending[:count], state.pending[count:]
    free -= int(work.gpus[started].sum())
    if free and len(waiting) > 1:
        started = np.concatenate((started, _overtaking(state, started=started, waiting=waiting, free=free)))
    return SchedulePlan(started, work.gpus[started])


def _overtaking(state: State, *, started: Ints, waiting: Ints, free: int) -> Ints:
    work = state.workload
    ends_s = np.concatenate((state.progress.end_s[state.running], state.now_s + work.duration_s[started]))
    sizes = work.gpus[np.concatenate((state.running, started))]
    limit = shadow_time(ends_s, sizes=sizes, free=free, wanted=int(work.gpus[waiting[0]]))
    # A job may overtake if it ends by the shadow time, or fits into the GPUs spare at that time.
    rest = waiting[1:]
    in_time = state.now_s + work.duration_s[rest] <= limit.time_s
    able = (work.gpus[rest] <= free) & (in_time | (work.gpus[rest] <= limit.spare))
    return _admit(rest[able], sizes=work.gpus[rest[able]], in_time=in_time[able], free=free, spare=limit.spare)


def _admit(jobs: Ints, *, sizes: Ints, in_time: npt.NDArray[np.bool_], free: int, spare: int) -> Ints:
    """Admits in order the jobs that fit into the free GPUs, and end by the shadow time or fit into the spare GPUs."""
    chosen = []
    for job, size, early in zip(jobs.tolist(), sizes.tolist(), in_time.tolist(), strict=True):
        if size <= free and (early or size <= spare):
            chosen.append(job)
            free -= size
            spare -= 0 if early else size
        if not free:
            break
    return np.array(chosen, dtype=np.int64)


@dataclass(frozen=True)
class Gaps:
    """GPUs that are not reserved: ``free[i]`` from ``time_s[i]`` to ``time_s[i + 1]``; the last gap has no end."""

    time_s: Floats
    free: Ints


@dataclass(frozen=True)
class _Reservations:
    gaps: Gaps
    jobs: Ints
    start_s: Floats


def conservative_backfill() -> ClusterPolicy[_Reservations]:
    """FIFO, but a job may overtake if no earlier job's planned start moves.

    Cost:
        One pass over the reservations for each arrival, and a comparison of planned starts at other events.
    """
    return ClusterPolicy("conservative", _begin, _decide)


def earliest_gap(gaps: Gaps, *, gpus: int, duration_s: float) -> float:
    """The first of ``gaps.time_s`` from which ``gpus`` GPUs are free for ``duration_s`` seconds.

    Args:
        gaps: GPUs that are not reserved, over time.
        gpus: GPUs needed, at most those of the cluster.
        duration_s: Seconds for which the GPUs are needed.

    >>> gaps = Gaps(np.array([0.0, 2.0, 5.0]), np.array([2, 0, 4]))
    >>> earliest_gap(gaps, gpus=1, duration_s=2.0), earliest_gap(gaps, gpus=1, duration_s=3.0)
    (0.0, 5.0)
    """
    # For each gap, the beginning of the next gap with too few GPUs.
    short = np.flatnonzero(gaps.free < gpus)
    blocked_s = np.append(gaps.time_s[short], math.inf)
    next_blocked_s = blocked_s[np.searchsorted(short, np.arange(len(gaps.time_s)))]
    return float(gaps.time_s[np.argmax(gaps.time_s + duration_s <= next_blocked_s)])


def with_reservation(gaps: Gaps, *, start_s: float, gpus: int, duration_s: float) -> Gaps:
    """The GPUs not reserved over time, after a reservation of ``gpus`` GPUs for ``duration_s`` s from ``start_s``."""
    gaps = _split(_split(gaps, start_s), start_s + duration_s)
    inside = (gaps.time_s >= start_s) & (gaps.time_s < start_s + duration_s)
    return Gaps(gaps.time_s, gaps.free - gpus * inside)


def _split(gaps: Gaps, at_s: float) -> Gaps:
    index = int(np.searchsorted(gaps.time_s, at_s))
    if index < len(gaps.time_s) and gaps.time_s[index] == at_s:
        return gaps
    return Gaps(np.insert(gaps.time_s, index, at_s), np.insert(gaps.free, index, gaps.free[index - 1]))


def _begin(_workload: Workload, gpus: int) -> _Reservations:
    gaps = Gaps(np.array([-math.inf]), np.array([gpus], dtype=np.int64))
    return _Reservations(gaps, np.empty(0, dtype=np.int64), np.empty(0))


def _decide(state: State, memory: _Reservations) -> tuple[SchedulePlan, _Reservations]:
    gaps, starts = _from_now(memory.gaps, now_s=state.now_s), []
    for job in state.arrived:
        gpus, duration_s = int(state.workload.gpus[job]), float(state.workload.duration_s[job])
        starts.append(earliest_gap(gaps, gpus=gpus, duration_s=duration_s))
        gaps = with_reservation(gaps, start_s=starts[-1], gpus=gpus, duration_s=duration_s)
    jobs, start_s = np.concatenate((memory.jobs, state.arrived)), np.concatenate((memory.start_s, starts))
    due = start_s <= state.now_s
    wake_s = float(start_s[~due].min()) if not due.all() else math.inf
    plan = SchedulePlan(jobs[due], state.workload.gpus[jobs[due]], wake_s)
    return plan, _Reservations(gaps, jobs[~due], start_s[~due])


def _from_now(gaps: Gaps, *, now_s: float) -> Gaps:
    current = int(np.searchsorted(gaps.time_s, now_s, side="right")) - 1
    time_s = gaps.time_s[current:].copy()
    time_s[0] = now_s
    return Gaps(time_s, gaps.free[current:])
