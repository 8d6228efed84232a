"""Cooldown: how long a rule keeps still after it has fired, in steps or in seconds."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kungfu.errors import PolicyError
from kungfu.ops import is_finite, where
from kungfu.ops.clock import job_seconds
from kungfu.signal import Signal, Source, fold

__all__ = ["NO_COOLDOWN", "Cooldown", "last_wish", "once_each", "with_cooldown"]

_LONG_AGO = -(1 << 40)


@dataclass(frozen=True)
class Cooldown:
    """At least so many steps, and at least so many seconds, between two firings of a rule; 0: none."""

    steps: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        whole = isinstance(self.steps, int) and not isinstance(self.steps, bool)
        if not whole or self.steps < 0 or not 0 <= self.seconds < math.inf:
            raise PolicyError(
                f".cooldown(steps={self.steps!r}, seconds={self.seconds!r}): takes a whole number of steps and a "
                "finite number of seconds, both at least 0"
            )


NO_COOLDOWN = Cooldown()


@dataclass(frozen=True, eq=False)
class _Meter:
    """Something that grows, how much of it has to pass, and where it stands before any firing."""

    reading: Signal
    period: float
    start: float


def with_cooldown(ready: Signal, *, gate: Signal, cooldown: Cooldown) -> Signal:
    """In the steps of the gate, where `ready` holds and the cooldown since this signal last held is over."""
    meters = _meters(cooldown)
    if not meters:
        return ready

    def update(state: tuple[Signal, ...], on: Signal, *now: Signal) -> tuple[Signal, ...]:
        fires = on & _rested(state[1:], now, meters=meters)
        return fires, *(where(fires, new, old) for new, old in zip(now, state[1:], strict=True))

    made = fold(update, (False, *(one.start for one in meters)), ready, *(one.reading for one in meters))
    return gate & replace(made, gate=gate)


def once_each(ready: Signal, *, target: Signal, gate: Signal, cooldown: Cooldown) -> Signal:
    """As `with_cooldown`, and only for a target other than the one for which this signal last held."""
    meters = _meters(cooldown)

    def update(state: tuple[Signal, ...], on: Signal, value: Signal, *now: Signal) -> tuple[Signal, ...]:
        fires = on & (value != state[1]) & _rested(state[2:], now, meters=meters)
        return fires, *(where(fires, new, old) for new, old in zip((value, *now), state[1:], strict=True))

    starts = (False, math.nan, *(one.start for one in meters))
    usable = where(is_finite(target), target, 0.0)  # a fold skips a NaN, and would go on saying what it said last
    made = fold(update, starts, ready & is_finite(target), usable, *(one.reading for one in meters))
    return gate & replace(made, gate=gate)


def last_wish(target: Signal, *, asked: Signal, gate: Signal, cooldown: Cooldown) -> Signal:
    """The last finite target that was asked for, changed only when the cooldown since its last change is over."""
    meters = _meters(cooldown)

    def update(state: tuple[Signal, ...], value: Signal, on: Signal, *now: Signal) -> tuple[Signal, ...]:
        changes = on & (value != state[0]) & _rested(state[1:], now, meters=meters)
        return tuple(where(changes, new, old) for new, old in zip((value, *now), state, strict=True))

    made = fold(update, (math.nan, *(one.start for one in meters)), target, asked, *(one.reading for one in meters))
    return replace(made, gate=gate)


def _meters(cooldown: Cooldown) -> tuple[_Meter, ...]:
    steps = (_Meter(Source("step"), cooldown.steps, _LONG_AGO),) if cooldown.steps else ()
    seconds = (_Meter(job_seconds(), float(cooldown.seconds), -math.inf),) if cooldown.seconds else ()
    return (*steps, *seconds)


def _rested(since: Iterable[Signal], now: Iterable[Signal], *, meters: tuple[_Meter, ...]) -> Signal | bool:
    """Whether enough of everything that is measured has passed."""
    passed = [there - then >= one.period for there, then, one in zip(now, since, meters, strict=True)]
    return functools.reduce(operator.and_, passed) if passed else True
