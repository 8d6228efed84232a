"""What would happen if nobody else arrived: the crew run forward under the allocation rule, without pauses.

Exact forecasts share the GPUs anew at every completion, which costs one sharing for each job of the crew. Estimates
share them only twice, now and at one later moment; in between and after it each job keeps what it has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kungfu.schedule.elan.crew import Crew, Setting, after, allocated, left_s

__all__ = ["Opening", "estimated_opening", "estimated_sum_of_ends_s", "opening", "sum_of_ends_s"]


@dataclass(frozen=True)
class Opening:
    """The first completion after which enough GPUs are free: when, who is left then, and the sum of ends until then."""

    time_s: float
    crew: Crew
    ends_s: float


def sum_of_ends_s(crew: Crew, *, setting: Setting) -> float:
    """The sum of all completion times, in seconds from now."""
    now_s, total_s = 0.0, 0.0
    while len(crew.jobs):
        step = _next_completion(crew, setting=setting)
        now_s += step.time_s
        total_s += now_s * (len(crew.jobs) - len(step.crew.jobs))
        crew = step.crew
    return total_s


def opening(crew: Crew, *, wanted: int, setting: Setting) -> Opening:
    """When ``wanted`` GPUs first lie free after a completion, before they are shared again."""
    now_s, total_s = 0.0, 0.0
    while len(crew.jobs):
        step = _next_completion(crew, setting=setting)
        now_s += step.time_s
        total_s += now_s * (len(crew.jobs) - len(step.crew.jobs))
        crew = step.crew
        if setting.gpus - int(crew.held.sum()) >= wanted:
            break
    return Opening(now_s, crew, total_s)


def estimated_opening(crew: Crew, *, wanted: int, setting: Setting) -> Opening:
    """The same if everybody kept the GPUs that one sharing gives now."""
    crew = allocated(crew, setting=setting)
    left = left_s(crew, setting=setting)
    order = np.argsort(left, kind="stable")
    free = setting.gpus - int(crew.held.sum()) + np.cumsum(crew.held[order])
    return _played(crew, seconds=float(left[order[np.searchsorted(free, wanted)]]), setting=setting)


def estimated_sum_of_ends_s(crew: Crew, *, again_s: float, setting: Setting) -> float:
    """The sum of all completion times if the GPUs are shared now and once more ``again_s`` seconds from now."""
    middle = _played(allocated(crew, setting=setting), seconds=again_s, setting=setting)
    rest = allocated(middle.crew, setting=setting)
    return middle.ends_s + again_s * len(rest.jobs) + float(left_s(rest, setting=setting).sum())


def _next_completion(crew: Crew, *, setting: Setting) -> Opening:
    crew = allocated(crew, setting=setting)
    return _played(crew, seconds=float(left_s(crew, setting=setting).min()), setting=setting)


def _played(crew: Crew, *, seconds: float, setting: Setting) -> Opening:
    """The crew with the shares it has, some time later."""
    left = left_s(crew, setting=setting)
    rest = after(crew, seconds=seconds, left=left, setting=setting)
    return Opening(seconds, rest, float(left[left <= seconds].sum()))
