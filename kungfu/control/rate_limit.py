"""Rate limits: how often a rule may fire (its cooldown), and how often a cluster may be changed (a budget).

Both are ordinary dataflow, so that every interpreter of a plan limits alike.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kungfu.errors import PolicyError
from kungfu.ops import all_reduce, is_finite, maximum, minimum, where
from kungfu.ops.clock import job_seconds
from kungfu.signal import Signal, Source, fold
from kungfu.signal.whole_number import is_whole_number

__all__ = [
    "NO_COOLDOWN",
    "Budget",
    "Cooldown",
    "Credit",
    "credit_of",
    "last_wish",
    "news_of_held",
    "once_each",
    "rescale_cost",
    "with_cooldown",
]

_LONG_AGO = -(1 << 40)
_BARRIER_STEPS = 2  # from a post to the first step after the barrier that answers it


@dataclass(frozen=True)
class Cooldown:
    """At least so many steps, and at least so many seconds, between two firings of a rule; 0: none."""

    steps: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not is_whole_number(self.steps, least=0) or not 0 <= self.seconds < math.inf:
            raise PolicyError(
                f".cooldown(steps={self.steps!r}, seconds={self.seconds!r}): takes a whole number of steps and a "
                "finite number of seconds, both at least 0"
            )


NO_COOLDOWN = Cooldown()


@dataclass(frozen=True, eq=False)
class _Meter:
    """Something that grows, how much of it has to pass, and where it stands before any firing.

    Attributes:
        reading: Where it stands.
        period: How much has to pass.
        start: Where it stands before any firing.
        only_if: Where this does not hold, nothing has to pass; ``None`` for a meter that always counts.
    """

    reading: Signal
    period: float
    start: float
    only_if: Signal | None = None


def with_cooldown(ready: Signal, *, gate: Signal, cooldown: Cooldown, once_per_barrier: bool = False) -> Signal:
    """In the steps of the gate, where `ready` holds and the cooldown since this signal last held is over.

    Args:
        ready: What must hold.
        gate: The steps in which it is looked at.
        cooldown: What has to pass before it holds again.
        once_per_barrier: Whether it does not hold again in the step between its post and the barrier that answers it.
    """
    meters = _meters(cooldown, once_per_barrier=once_per_barrier)
    if not meters:
        return ready

    # The state: whether it fires, and each meter's reading when it last did.
    def update(state: tuple[Signal, ...], on: Signal, *now: Signal) -> tuple[Signal, ...]:
        fires = on & _rested(state[1:], now, meters=meters)
        return fires, *(where(fires, new, old) for new, old in zip(now, state[1:], strict=False))

    made = fold(update, (False, *(one.start for one in meters)), ready, *_observed(meters))
    return gate & replace(made, gate=gate)


def once_each(
    ready: Signal, *, target: Signal, gate: Signal, cooldown: Cooldown, once_per_barrier: bool = False
) -> Signal:
    """As `with_cooldown`, and only for a target other than the one for which this signal last held."""
    meters = _meters(cooldown, once_per_barrier=once_per_barrier)

    # The state: whether it fires, the target for which it last did, and each meter's reading then.
    def update(state: tuple[Signal, ...], on: Signal, value: Signal, *now: Signal) -> tuple[Signal, ...]:
        fires = on & (value != state[1]) & _rested(state[2:], now, meters=meters)
        return fires, *(where(fires, new, old) for new, old in zip((value, *now), state[1:], strict=False))

    starts = (False, math.nan, *(one.start for one in meters))
    usable = where(is_finite(target), target, 0.0)  # a fold skips a NaN, and would go on saying what it said last
    made = fold(update, starts, ready & is_finite(target), usable, *_observed(meters))
    return gate & replace(made, gate=gate)


def last_wish(target: Signal, *, asked: Signal, gate: Signal, cooldown: Cooldown) -> Signal:
    """The last finite target that was asked for, changed only when the cooldown since its last change is over."""
    meters = _meters(cooldown)

    # The state: the last target, and each meter's reading when it changed.
    def update(state: tuple[Signal, ...], value: Signal, on: Signal, *now: Signal) -> tuple[Signal, ...]:
        changes = on & (value != state[0]) & _rested(state[1:], now, meters=meters)
        return tuple(where(changes, new, old) for new, old in zip((value, *now), state, strict=True))

    made = fold(update, (math.nan, *(one.start for one in meters)), target, asked, *(one.reading for one in meters))
    return replace(made, gate=gate)


def _meters(cooldown: Cooldown, *, once_per_barrier: bool = False) -> tuple[_Meter, ...]:
    steps = (_Meter(Source("step"), cooldown.steps, _LONG_AGO),) if cooldown.steps else ()
    seconds = (_Meter(job_seconds(), float(cooldown.seconds), -math.inf),) if cooldown.seconds else ()
    # A post of one step is answered by the barrier of the next one.
    step = Source("step")
    posts = (_Meter(step, _BARRIER_STEPS, _LONG_AGO, only_if=Source("barrier_due")),) if once_per_barrier else ()
    return (*steps, *seconds, *(posts if cooldown.steps < _BARRIER_STEPS else ()))


def _observed(meters: tuple[_Meter, ...]) -> tuple[Signal, ...]:
    """The readings of all meters, then the conditions of those that have one."""
    conditions = (one.only_if for one in meters if one.only_if is not None)
    return (*(one.reading for one in meters), *conditions)


def _rested(since: Iterable[Signal], now: tuple[Signal, ...], *, meters: tuple[_Meter, ...]) -> Signal | bool:
    """Whether enough of everything that is measured has passed; ``now`` is what `_observed` gives."""
    conditions = iter(now[len(meters) :])
    passed = []
    for there, then, one in zip(now, since, meters, strict=False):
        enough = there - then >= one.period
        passed.append(enough if one.only_if is None else enough | ~next(conditions))
    return functools.reduce(operator.and_, passed) if passed else True


# ---- budgets: of a job, or of a policy ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """At most `rescales` changes of the cluster at once, and one more for every ``per_steps / rescales`` steps.

    A token bucket: it starts full with `rescales` tokens, gains them back evenly over `per_steps` steps, and every
    change of the membership costs one, whoever asked for it. While less than one is left, no rule may rescale, evict
    or replace, and what a hook asks for is passed over; of several rules in one step each needs a token of its own, in
    the order of the policies. Over any n steps, policies thus change the cluster at most
    ``rescales * (1 + n / per_steps)`` times. A rule that is held back is recorded once, until a token is left again.

    A job's budget (``attach(budget=)``) holds back the rules of all policies. Without it, the budget of a policy
    (``@kf.policy(budget=)``; those prebuilt ones that decide by measurements have one) holds back that policy's rules
    alone, and counts every change as well.

    Args:
        rescales: Tokens, from 1 to 2 ** 20 - 1.
        per_steps: Steps in which an empty bucket fills, from 1 to 2 ** 20 - 1.

    Raises:
        PolicyError: A number is not whole, or out of its range.

    Cost:
        Two int64 of state, and two truth values for each rule that changes the cluster; no message.

    On rescale:
        The tokens stay, less one.
    """

    rescales: int
    per_steps: int

    def __post_init__(self) -> None:
        for name, value in (("rescales", self.rescales), ("per_steps", self.per_steps)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 20:
                raise PolicyError(f"Budget({name}={value!r}): takes a whole number from 1 to {(1 << 20) - 1}")


@dataclass(frozen=True, eq=False)
class Credit:
    """The rest of one or several budgets, all of which must allow a change.

    Attributes:
        rests: For each budget its `parts` (int64, agreed), and how many of them a change costs.
    """

    rests: tuple[tuple[Signal, int], ...]

    def allows(self, taken: Signal) -> Signal:
        """Whether a change is left where `taken` (int64) others come before it."""
        return functools.reduce(operator.and_, (parts >= (taken + 1) * price for parts, price in self.rests))

    def left(self, taken: Signal) -> Signal:
        """How many changes are left then: float32."""
        fewest = functools.reduce(minimum, (parts / price for parts, price in self.rests))
        return (fewest - taken).named("rescales_left")

    def whole_left(self, taken: Signal) -> Signal:
        """How many whole ones: int64."""
        fewest = functools.reduce(minimum, (parts // price for parts, price in self.rests))
        return (fewest - taken).named("rescales_left")


def credit_of(budgets: Iterable[Budget]) -> Credit:
    """The rest of these budgets in a step. Cost: two int64 of state for each, no message."""
    return Credit(tuple((_parts_left(one), one.per_steps) for one in dict.fromkeys(budgets)))


def _parts_left(budget: Budget) -> Signal:
    # In parts of a token, so that a step's gain is whole: `rescales` of the `per_steps` parts that a change costs.
    full, price, gain = budget.rescales * budget.per_steps, budget.per_steps, budget.rescales

    def update(state: tuple[Signal, ...], view: Signal) -> tuple[Signal, ...]:
        credit, before = state
        changed = (before >= 0) & (view > before)  # a job that is resumed begins with the first view again
        # In whole numbers: what a float lost in the last bit could be the rescale that makes peers disagree.
        return minimum(maximum(where(changed, credit - price, credit), 0) + gain, full), view

    return fold(update, (full, -1), Source("view"), output=lambda state: state[0])


def news_of_held(blocked: Signal, *, allowed: Signal, gate: Signal) -> Signal:
    """In the steps of the gate: where `blocked` holds for the first time since `allowed` last held.

    Cost: two truth values of state.
    """

    # The state: whether this is news, and whether it has been told since the rule was last free.
    def update(state: tuple[Signal, ...], now: Signal, free: Signal) -> tuple[Signal, ...]:
        return now & ~state[1], (state[1] | now) & ~free

    return gate & replace(fold(update, (False, False), blocked, allowed, output=lambda state: state[0]), gate=gate)


def rescale_cost(*, at_first_s: float) -> Signal:
    """Seconds for which the last rescale stopped a peer, as the mean over the peers that went through it.

    Args:
        at_first_s: The value before the first rescale, seconds.

    Returns:
        float32 scalar, seconds, agreed.

    Cost:
        Two floats on the gradient all-reduce, no message.

    Raises:
        PolicyError: `at_first_s` is negative or not finite.
    """
    if not 0 <= at_first_s < math.inf:
        raise PolicyError(f".payback(at_first_s={at_first_s!r}): takes a finite number of seconds, at least 0")
    # A peer that joined by the rescale has no time of its own: it adds nothing, and does not count.
    own = Source("rescale_seconds")
    total = all_reduce(where(is_finite(own), own, 0.0), "sum")
    peers = all_reduce(where(is_finite(own), 1.0, 0.0), "sum")
    return where(peers > 0, total / peers, at_first_s)
