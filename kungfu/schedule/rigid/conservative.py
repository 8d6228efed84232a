"""Conservative backfilling: every job has a reservation, and nobody may move one that was made earlier.

Runtimes are known exactly, so nothing ever ends early and a reservation never improves: each job is planned once,
at its arrival, into the earliest gap that the earlier ones leave. Planning everybody anew at every event gives the
same starts (a test compares the two) at many times the cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kungfu.schedule.state import Floats, Ints, Plan, Policy, State, Workload

__all__ = ["Gaps", "conservative_backfill", "earliest_gap", "with_reservation"]


@dataclass(frozen=True)
class Gaps:
    """GPUs that nobody has reserved: ``free[i]`` from ``time_s[i]`` to ``time_s[i + 1]``, the last one for ever."""

    time_s: Floats
    free: Ints


@dataclass(frozen=True)
class _Reservations:
    gaps: Gaps
    jobs: Ints
    start_s: Floats


def conservative_backfill() -> Policy[_Reservations]:
    """FIFO, but a job may overtake if no earlier job's planned start moves.

    Cost: one pass over the reservations for each arrival, nothing but a comparison at other events.
    """
    return Policy("conservative", _begin, _decide)


def earliest_gap(gaps: Gaps, *, gpus: int, duration_s: float) -> float:
    """The first of ``gaps.time_s`` from which ``gpus`` GPUs stay free for ``duration_s`` seconds.

    >>> gaps = Gaps(np.array([0.0, 2.0, 5.0]), np.array([2, 0, 4]))
    >>> earliest_gap(gaps, gpus=1, duration_s=2.0), earliest_gap(gaps, gpus=1, duration_s=3.0)
    (0.0, 5.0)
    """
    short = np.flatnonzero(gaps.free < gpus)
    blocked_s = np.append(gaps.time_s[short], math.inf)
    next_blocked_s = blocked_s[np.searchsorted(short, np.arange(len(gaps.time_s)))]
    return float(gaps.time_s[np.argmax(gaps.time_s + duration_s <= next_blocked_s)])


def with_reservation(gaps: Gaps, *, start_s: float, gpus: int, duration_s: float) -> Gaps:
    """The gaps that are left when ``gpus`` GPUs are taken from ``start_s`` for ``duration_s`` seconds."""
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


def _decide(state: State, memory: _Reservations) -> tuple[Plan, _Reservations]:
    gaps, starts = _from_now(memory.gaps, now_s=state.now_s), []
    for job in state.arrived:
        gpus, duration_s = int(state.workload.gpus[job]), float(state.workload.duration_s[job])
        starts.append(earliest_gap(gaps, gpus=gpus, duration_s=duration_s))
        gaps = with_reservation(gaps, start_s=starts[-1], gpus=gpus, duration_s=duration_s)
    jobs, start_s = np.concatenate((memory.jobs, state.arrived)), np.concatenate((memory.start_s, starts))
    due = start_s <= state.now_s
    wake_s = float(start_s[~due].min()) if not due.all() else math.inf
    plan = Plan(jobs[due], state.workload.gpus[jobs[due]], wake_s)
    return plan, _Reservations(gaps, jobs[~due], start_s[~due])


def _from_now(gaps: Gaps, *, now_s: float) -> Gaps:
    current = int(np.searchsorted(gaps.time_s, now_s, side="right")) - 1
    time_s = gaps.time_s[current:].copy()
    time_s[0] = now_s
    return Gaps(time_s, gaps.free[current:])
