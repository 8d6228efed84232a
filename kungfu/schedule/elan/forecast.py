"""What would happen if nobody else arrived: the crew run forward under the allocation rule.

A forecast knows no pauses. Beyond ``until_s`` it stops re-sharing: each job keeps its GPUs to its end. That makes a
forecast of a large crew affordable; with ``until_s`` infinite it is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kungfu.schedule.elan.crew import Crew, Setting, after, allocated, left_s

__all__ = ["Opening", "estimated_opening_s", "opening", "sum_of_ends_s"]


@dataclass(frozen=True)
class Opening:
    """The first completion after which enough GPUs are free: when, for whom it is left, and who ended before."""

    time_s: float
    crew: Crew
    ends_s: float


def sum_of_ends_s(crew: Crew, *, setting: Setting, until_s: float = math.inf) -> float:
    """The sum of all completion times, in seconds from now, re-shared at each completion before ``until_s``."""
    now_s, total_s = 0.0, 0.0
    while len(crew.jobs):
        crew = allocated(crew, setting=setting)
        left = left_s(crew, setting=setting)
        if now_s >= until_s:
            return total_s + float((now_s + left).sum())
        step_s = min(float(left.min()), until_s - now_s)
        now_s += step_s
        total_s += now_s * int((left <= step_s).sum())
        crew = after(crew, seconds=step_s, left=left, setting=setting)
    return total_s


def opening(crew: Crew, *, wanted: int, setting: Setting) -> Opening:
    """When ``wanted`` GPUs first lie free after a completion, before they are shared again."""
    now_s, total_s = 0.0, 0.0
    while len(crew.jobs):
        crew = allocated(crew, setting=setting)
        left = left_s(crew, setting=setting)
        step_s = float(left.min())
        now_s += step_s
        total_s += now_s * int((left <= step_s).sum())
        crew = after(crew, seconds=step_s, left=left, setting=setting)
        if setting.gpus - int(crew.held.sum()) >= wanted:
            break
    return Opening(now_s, crew, total_s)


def estimated_opening_s(crew: Crew, *, wanted: int, setting: Setting) -> float:
    """The same time if everybody kept the GPUs that one sharing gives now: no later sharing is looked at."""
    crew = allocated(crew, setting=setting)
    left = left_s(crew, setting=setting)
    order = np.argsort(left, kind="stable")
    free = setting.gpus - int(crew.held.sum()) + np.cumsum(crew.held[order])
    return float(left[order[np.searchsorted(free, wanted)]])
