"""EASY backfilling: only the head of the line has a reservation.

The head's *shadow time* is the earliest time at which enough GPUs are free for it, given what runs. A later job may
start now if it ends by the shadow time, or uses only GPUs that are spare then. Runtimes are known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kungfu.schedule.rigid.fitting import prefix_that_fits
from kungfu.schedule.rigid.in_order import free_gpus
from kungfu.schedule.state import Floats, Ints, Plan, Policy, State, stateless

__all__ = ["Shadow", "easy_backfill", "shadow"]


@dataclass(frozen=True)
class Shadow:
    """When the head can start at the latest, and how many GPUs it leaves spare then."""

    time_s: float
    spare: int


def easy_backfill() -> Policy[None]:
    """FIFO, but a job may overtake if the head of the line still starts at its shadow time.

    Cost at an event: a sort of the running jobs' ends and a pass over the waiting jobs that are small enough.
    """
    return stateless("easy", decide=_easy)


def shadow(ends_s: Floats, *, sizes: Ints, free: int, wanted: int) -> Shadow:
    """The shadow time of a head that wants more than is ``free``, given when which running jobs end.

    >>> shadow(np.array([10.0, 5.0]), sizes=np.array([3, 1]), free=0, wanted=2)
    Shadow(time_s=10.0, spare=2)
    """
    order = np.argsort(ends_s, kind="stable")
    released = free + np.cumsum(sizes[order])
    time_s = float(ends_s[order[np.searchsorted(released, wanted)]])
    there = free + int(sizes[ends_s <= time_s].sum())
    return Shadow(time_s, there - wanted)


def _easy(state: State) -> Plan:
    work = state.workload
    free = free_gpus(state)
    count = prefix_that_fits(work.gpus[state.pending[: state.gpus]], free=free)
    started, waiting = state.pending[:count], state.pending[count:]
    free -= int(work.gpus[started].sum())
    if free and len(waiting) > 1:
        started = np.concatenate((started, _overtaking(state, started=started, waiting=waiting, free=free)))
    return Plan(started, work.gpus[started])


def _overtaking(state: State, *, started: Ints, waiting: Ints, free: int) -> Ints:
    work = state.workload
    ends_s = np.concatenate((state.progress.end_s[state.running], state.now_s + work.duration_s[started]))
    sizes = work.gpus[np.concatenate((state.running, started))]
    limit = shadow(ends_s, sizes=sizes, free=free, wanted=int(work.gpus[waiting[0]]))
    rest = waiting[1:]
    in_time = state.now_s + work.duration_s[rest] <= limit.time_s
    able = (work.gpus[rest] <= free) & (in_time | (work.gpus[rest] <= limit.spare))
    return _admit(rest[able], sizes=work.gpus[rest[able]], in_time=in_time[able], free=free, spare=limit.spare)


def _admit(jobs: Ints, *, sizes: Ints, in_time: npt.NDArray[np.bool_], free: int, spare: int) -> Ints:
    """Take the jobs one by one; both what is free and what is spare only shrink."""
    chosen = []
    for job, size, early in zip(jobs.tolist(), sizes.tolist(), in_time.tolist(), strict=True):
        if size <= free and (early or size <= spare):
            chosen.append(job)
            free -= size
            spare -= 0 if early else size
        if not free:
            break
    return np.array(chosen, dtype=np.int64)
