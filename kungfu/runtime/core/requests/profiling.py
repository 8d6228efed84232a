"""The survey of a profile: the size and batch to measure next, the measurements so far, and their completion.

A survey proceeds from the largest size down: a peer leaves at once, but a joiner takes seconds to get ready. So
there are two waves of joiners (up to the largest size, and back to the initial size) instead of one for each size. All
batches of a size are measured before the next size.
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
class Goal:
    """A number of peers, and the global batch in samples that a profile sets for them; ``None`` if it sets none."""

    size: int
    batch: int | None = None

    def counts(self, step: TimedStep) -> bool:
        """True for a step with this size, a known time and, if a batch is set, exactly this batch.

        The last step of an epoch, which may be smaller, has another batch."""
        return step.size == self.size and self.batch in (None, step.samples) and step.seconds > 0


@dataclass(frozen=True)
class Survey:
    """The progress of a profile: the goals still to be measured, and the measurements so far."""

    remaining: tuple[Goal, ...]  # the goals still to be measured, the present one first
    initial: Goal  # the size and, if the profile sets batches, the batch of the job when the profile began
    steps: int  # the number of steps measured at each goal
    skip: int = WARM_UP_STEPS  # the number of steps of the present goal that still count as warm-up
    current: Point | None = None  # the measurements of the present goal
    measured: tuple[Point, ...] = ()  # the measurements of the completed goals
    has_returned: bool = False  # a step with the initial size and batch followed the measurements

    @property
    def goal(self) -> Goal:
        """The size and batch that the job should have now: the next to measure, or at the end the initial ones."""
        return self.remaining[0] if self.remaining else self.initial

    @property
    def is_measured(self) -> bool:
        """True if the throughput of every goal has been measured."""
        return not self.remaining

    @property
    def is_over(self) -> bool:
        """True if everything is measured and, if the profile set batches, the job trains with its initial batch."""
        return self.is_measured and (self.initial.batch is None or self.has_returned)


def start_survey(profile: Profile, *, initial_size: int, batch: int | None = None) -> Survey:
    """The survey of a profile, from the largest size down, and at each size in the order of the batches.

    Args:
        initial_size: The present size of the job, to which the job returns afterwards.
        batch: The present global batch, in samples, to which the job returns if the profile sets batches.

    >>> [one.size for one in start_survey(Profile(1, 3, 50), initial_size=2).remaining]
    [3, 2, 1]
    """
    sizes, batches = range(profile.maximum, profile.minimum - 1, -1), profile.batches or (None,)
    goals = tuple(Goal(size, one) for size in sizes for one in batches)
    return Survey(goals, Goal(initial_size, batch if profile.batches else None), profile.steps)


def with_measured(survey: Survey, steps: Sequence[TimedStep]) -> Survey:
    """The survey after more measured steps; steps that do not belong to the current goal are ignored."""
    for one in steps:
        survey = _counted(survey, one)
    return survey


def _counted(survey: Survey, one: TimedStep) -> Survey:
    if not survey.goal.counts(one):
        # The step has another size or batch, or no time: the job is changing to the next goal.
        return survey
    if survey.is_measured:
        # The job is back at its initial size and batch.
        return replace(survey, has_returned=True)
    if survey.skip:
        # The step belongs to the warm-up.
        return replace(survey, skip=survey.skip - 1)
    before = survey.current or Point(survey.goal.size)
    point = Point(before.size, before.steps + 1, before.samples + one.samples, before.seconds + one.seconds)
    if point.steps < survey.steps:
        # This goal needs more steps.
        return replace(survey, current=point)
    return replace(
        survey, remaining=survey.remaining[1:], skip=WARM_UP_STEPS, current=None, measured=(*survey.measured, point)
    )
