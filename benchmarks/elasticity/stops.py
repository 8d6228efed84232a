"""Results computed from stamps: the stop of training at a change of size, and the cost of a failure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.elasticity.stamps import Stamp

__all__ = ["AROUND", "Change", "Recovery", "changes", "normal_step_s", "recovery"]

AROUND = 5  # steps before and after the first step of a new size, for the gaps of a change


@dataclass(frozen=True)
class Change:
    """A change of a job's size from ``before`` to ``after``; the stop is the longest gap minus a normal step."""

    before: int
    after: int
    at: float
    stop_s: float


@dataclass(frozen=True)
class Recovery:
    """The time from the end of a worker to the end of the survivors' next step, and the lost steps.

    ``stop_s`` is the survivors' stop: from the end of their last step to the end of their next step, minus a normal
    step. It includes the detection and the regrouping.
    """

    seconds: float
    steps_lost: int
    stop_s: float


def normal_step_s(stamps: Sequence[Stamp]) -> float:
    """The median of the seconds from the end of a step to the end of the next step.

    >>> normal_step_s([Stamp(0.0, end, 0, 0, 2, 0) for end in (1.0, 2.0, 3.0, 9.0)])
    1.0
    """
    return statistics.median(_gaps(stamps))


def changes(workers: Mapping[int, Sequence[Stamp]]) -> list[Change]:
    """Every change of size with at least one survivor, in order of time.

    The survivors of a change are the workers with a step right before and right after it. The stop is the longest gap
    between the ends of two consecutive steps of a survivor, within ``AROUND`` steps, minus its normal step.
    """
    found: list[Change] = []
    for stamps in workers.values():
        done = [stamp for stamp in stamps if stamp.size]
        if len(done) < 2:
            continue
        gaps, normal = _gaps(done), normal_step_s(done)
        for i, (one, other) in enumerate(itertools.pairwise(done)):
            if one.size != other.size:
                longest = max(gaps[max(0, i - AROUND) : i + AROUND + 1])
                found.append(Change(one.size, other.size, other.ended, longest - normal))
    return _one_each(sorted(found, key=lambda change: change.at))


def _one_each(found: Sequence[Change]) -> list[Change]:
    """The changes without duplicates: of the same change seen by several survivors, the one with the longest stop."""
    merged: list[Change] = []
    for change in found:
        last = merged[-1] if merged else None
        if last is not None and (last.before, last.after) == (change.before, change.after):
            merged[-1] = Change(last.before, last.after, last.at, max(last.stop_s, change.stop_s))
        else:
            merged.append(change)
    return merged


def recovery(workers: Mapping[int, Sequence[Stamp]], *, killed: int, at: float) -> Recovery:
    """The cost of the end of the worker ``killed`` at the second ``at`` for the others; the worst survivor counts.

    A survivor has recovered at the end of its first step in a job of another size. Until then every attempt that did
    not increase the count is a lost step: failed attempts, and steps undone by the return to an older state.
    """
    found = [_recovery(stamps, at=at) for pid, stamps in workers.items() if pid != killed and stamps[-1].ended > at]
    if not found:
        raise ValueError(f"no worker took a step after worker {killed} was killed")
    seconds, stop_s = (max(getattr(one, name) for one in found) for name in ("seconds", "stop_s"))
    return Recovery(seconds, max(one.steps_lost for one in found), stop_s)


def _recovery(stamps: Sequence[Stamp], *, at: float) -> Recovery:
    first = next(i for i, stamp in enumerate(stamps) if stamp.ended >= at)
    size = max(stamp.size for stamp in stamps[:first])
    for last in range(first, len(stamps)):
        one = stamps[last]
        if one.size not in (0, size) and one.after > one.before:
            attempts, done = last - first + 1, [stamp for stamp in stamps[:first] if stamp.size]
            stop_s = one.ended - done[-1].ended - normal_step_s(done)
            return Recovery(one.ended - at, attempts - (one.after - stamps[first].before), stop_s)
    raise ValueError(f"a worker never took a step with another size than {size}")


def _gaps(stamps: Sequence[Stamp]) -> list[float]:
    return [other.ended - one.ended for one, other in itertools.pairwise(stamps)]
