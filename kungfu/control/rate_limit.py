"""Rate limits of a rule: the cooldown between two firings, and the cost that a rescale has to pay back.

Both are ordinary dataflow, so that all interpreters of a plan apply them identically. Budgets (`kungfu.control.budget`)
bound the number of changes of a cluster.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kungfu.errors import PolicyError
from kungfu.ops import all_reduce, is_finite, job_seconds, where
from kungfu.signal import Signal, Source, fold
from kungfu.signal.whole_number import is_whole_number

_LONG_AGO = -(1 << 40)
_BARRIER_STEPS = 2  # from a request to the first step after its barrier


@dataclass(frozen=True)
class Cooldown:
    """The minimum numbers of steps and of seconds between two firings of a rule; 0 for no limit."""

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
    """A growing quantity that must increase by a given amount between two firings.

    Attributes:
        reading: The reading of the meter.
        period: The required increase.
        start: The reading before any firing.
        only_if: A condition; while it is false, no increase is required. ``None`` if an increase is always required.
    """

    reading: Signal
    period: float
    start: float
    only_if: Signal | None = None


def with_cooldown(
    ready: Signal,
    *,
    gate: Signal,
    cooldown: Cooldown,
    once_per_barrier: bool = False,
    targets: tuple[Signal, ...] = (),
) -> Signal:
    """True in the gate's steps in which `ready` holds, provided that the cooldown since the last true step is over.

    Args:
        ready: The condition that must hold.
        gate: The steps in which the condition is evaluated.
        cooldown: The amounts that must pass before the result is true again.
        once_per_barrier: True to exclude the step between a request and its barrier.
        targets: The requested numbers, if any, of which a NaN after the first one requests nothing; the result is
            False if the first is NaN, or all are the same as when the result was last true.
    """
    meters = _meters(cooldown, once_per_barrier=once_per_barrier)
    if not meters and not targets:
        return ready
    # A fold would skip NaN and keep its last value.
    wanted = tuple(where(is_finite(one), one, 0.0) for one in targets)
    count = len(wanted)

    # The state: True if the signal fires; the targets, if any, and each meter's reading at its last firing.
    def update(state: tuple[Signal, ...], on: Signal, *now: Signal) -> tuple[Signal, ...]:
        news = [new != old for new, old in zip(now[:count], state[1:], strict=False)]
        fires = on & functools.reduce(operator.or_, news) if news else on
        fires = fires & _rested(state[1 + count :], now[count:], meters=meters)
        return fires, *(where(fires, new, old) for new, old in zip(now, state[1:], strict=False))

    starts = (False, *(math.nan for _ in wanted), *(one.start for one in meters))
    made = fold(update, starts, ready & is_finite(targets[0]) if targets else ready, *wanted, *_observed(meters))
    return gate & replace(made, gate=gate)


def last_request(numbers: tuple[Signal, ...], *, asked: Signal, gate: Signal, cooldown: Cooldown) -> tuple[Signal, ...]:
    """The numbers of the last request whose numbers were all finite; they change only when the cooldown since their
    last change is over."""
    meters, count = _meters(cooldown), len(numbers)

    # The state: the last numbers, and each meter's reading when they changed.
    def update(state: tuple[Signal, ...], *given: Signal) -> tuple[Signal, ...]:
        new, on, now = given[:count], given[count], given[count + 1 :]
        differs = functools.reduce(operator.or_, (one != old for one, old in zip(new, state, strict=False)))
        changes = on & differs & _rested(state[count:], now, meters=meters)
        return tuple(where(changes, one, old) for one, old in zip((*new, *now), state, strict=True))

    starts, seen = (math.nan,) * count + tuple(one.start for one in meters), (one.reading for one in meters)
    inputs = (*numbers, asked, *seen)
    made = (fold(update, starts, *inputs, output=operator.itemgetter(index)) for index in range(count))
    return tuple(replace(one, gate=gate) for one in made)


def _meters(cooldown: Cooldown, *, once_per_barrier: bool = False) -> tuple[_Meter, ...]:
    steps = (_Meter(Source("step"), cooldown.steps, _LONG_AGO),) if cooldown.steps else ()
    seconds = (_Meter(job_seconds(), float(cooldown.seconds), -math.inf),) if cooldown.seconds else ()
    # The request of one step is handled by the barrier of the next step.
    step = Source("step")
    posts = (_Meter(step, _BARRIER_STEPS, _LONG_AGO, only_if=Source("barrier_due")),) if once_per_barrier else ()
    return (*steps, *seconds, *(posts if cooldown.steps < _BARRIER_STEPS else ()))


def _observed(meters: tuple[_Meter, ...]) -> tuple[Signal, ...]:
    """The readings of all meters, followed by the conditions of those meters that have one."""
    conditions = (one.only_if for one in meters if one.only_if is not None)
    return (*(one.reading for one in meters), *conditions)


def _rested(since: Iterable[Signal], now: tuple[Signal, ...], *, meters: tuple[_Meter, ...]) -> Signal | bool:
    """True if every meter has increased enough since the readings ``since``; ``now`` is the result of `_observed`."""
    conditions = iter(now[len(meters) :])
    passed = []
    for there, then, one in zip(now, since, meters, strict=False):
        enough = there - then >= one.period
        passed.append(enough if one.only_if is None else enough | ~next(conditions))
    return functools.reduce(operator.and_, passed) if passed else True


def rescale_cost(*, at_first_s: float) -> Signal:
    """The seconds for which the last rescale stopped a peer, as the mean over the peers present before and after it.

    Args:
        at_first_s: The value before the first rescale, seconds.

    Returns:
        A float32 scalar, in seconds, equal on all peers.

    Cost:
        Two floats on the gradient all-reduce, no message.

    Raises:
        PolicyError: `at_first_s` is negative or not finite.
    """
    if not 0 <= at_first_s < math.inf:
        raise PolicyError(f".payback(at_first_s={at_first_s!r}): takes a finite number of seconds, at least 0")
    # A peer that joined in the rescale has no measured time: the sum and the count exclude it.
    own = Source("rescale_seconds")
    total = all_reduce(where(is_finite(own), own, 0.0), "sum")
    peers = all_reduce(where(is_finite(own), 1.0, 0.0), "sum")
    return where(peers > 0, total / peers, at_first_s)
