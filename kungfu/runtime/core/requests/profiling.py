"""The survey of a profile: the size to measure next, the measurements so far, and the completion of each size.

A survey proceeds from the largest size down: a peer leaves at once, but a joiner takes seconds to get ready. So
there are two waves of joiners (up to the largest size, and back to the initial size) instead of one for each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kungfu.runtime.core.request import Profile

# In a new view caches are cold, and peers that left may still occupy the processors.
WARM_UP_STEPS = 3


@dataclass(frozen=True)
class TimedStep:
    """A measured step: its number of peers, its samples and its seconds."""

    size: int
    samples: int
    seconds: float


@dataclass(frozen=True)
class Point:
    """The measurements of a size: ``samples`` and ``seconds``, each summed over ``steps`` steps."""

    size: int
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Survey:
    """The progress of a profile: the sizes still to be measured, and the measurements so far."""

    remaining: tuple[int, ...]  # the sizes still to be measured, the present size first
    initial_size: int  # the size that the job had when the profile began
    steps: int  # the number of steps measured at each size
    skip: int = WARM_UP_STEPS  # the number of steps of the present size that still count as warm-up
    current: Point | None = None  # the measurements of the present size
    measured: tuple[Point, ...] = ()  # the measurements of the completed sizes

    @property
    def goal(self) -> int:
        """The size that the job should have now: the next one to measure, or at the end the initial size."""
        return self.remaining[0] if self.remaining else self.initial_size

    @property
    def is_measured(self) -> bool:
        """True if the throughput of every size has been measured."""
        return not self.remaining


def start_survey(profile: Profile, *, initial_size: int) -> Survey:
    """The survey of a profile, from the largest size down.

    Args:
        profile: The sizes, and the number of steps to measure at each.
        initial_size: The present size of the job, to which the job returns afterwards.

    >>> start_survey(Profile(1, 3, 50), initial_size=2).remaining
    (3, 2, 1)
    """
    return Survey(tuple(range(profile.maximum, profile.minimum - 1, -1)), initial_size, profile.steps)


def with_measured(survey: Survey, steps: Sequence[TimedStep]) -> Survey:
    """The survey after more measured steps; steps at any size other than the current one are ignored."""
    for one in steps:
        survey = _counted(survey, one)
    return survey


def _counted(survey: Survey, one: TimedStep) -> Survey:
    if survey.is_measured or one.size != survey.goal or not one.seconds > 0:
        # The step has another size or no time: the job is changing to the next size.
        return survey
    if survey.skip:
        # The step belongs to the warm-up.
        return replace(survey, skip=survey.skip - 1)
    before = survey.current or Point(survey.goal)
    point = Point(before.size, before.steps + 1, before.samples + one.samples, before.seconds + one.seconds)
    if point.steps < survey.steps:
        # This size needs more steps.
        return replace(survey, current=point)
    return replace(
        survey, remaining=survey.remaining[1:], skip=WARM_UP_STEPS, current=None, measured=(*survey.measured, point)
    )
