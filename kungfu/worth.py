"""The worth of a job, for use in policies: its value as a function of its completion time.

A worth is a function ``U(T)`` of the seconds T from the job's first step to its last. It never rises with T, and is in
the same currency as the price of a peer. A policy compares differences of worth with differences in cost.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kungfu.errors import PolicyError
from kungfu.ops import clip, exp, log, maximum, where
from kungfu.signal import Signal

__all__ = ["Worth", "concave", "linear", "points", "steps"]


@dataclass(frozen=True)
class Worth(abc.ABC):
    """The value of a job by its completion time; made by `linear`, `concave`, `steps` or `points`."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises `PolicyError` if the numbers do not describe a worth, for example if it rises with time."""

    @abc.abstractmethod
    def at(self, seconds: Signal, *, first: Signal) -> Signal:
        """The value of a job that takes `seconds` (a scalar or a vector), as float32; NaN for NaN.

        Only `steps` needs `first`, the first estimate of the job's time (T0 in the paper).
        """


def linear(value: float, *, zero_at_s: float) -> Worth:
    """``U(T) = value * (1 - T / zero_at_s)``: each second saved is worth the same, even beyond ``zero_at_s``.

    Args:
        value: The value of a job that needs no time, at least 0.
        zero_at_s: Seconds after which the worth is 0, above 0.

    >>> linear(100.0, zero_at_s=3600)
    kf.worth.linear(100.0, zero_at_s=3600)
    """
    return _Power("linear", value, zero_at_s, 1.0)


def concave(value: float, *, zero_at_s: float, power: float = 2.0) -> Worth:
    """``U(T) = value * (1 - (T / zero_at_s) ** power)``: later seconds are worth more.

    Args:
        value: The value of a job that needs no time, at least 0.
        zero_at_s: Seconds after which the worth is 0, above 0.
        power: The exponent, above 1.

    >>> concave(100.0, zero_at_s=3600)
    kf.worth.concave(100.0, zero_at_s=3600, power=2.0)
    """
    return _Power("concave", value, zero_at_s, power)


def steps(values: Mapping[float, float]) -> Worth:
    """Deadlines: the value of a job depends on the first deadline that it meets, and falls to 0 after the last one.

    The value falls linearly from each deadline to the next, and from the last deadline to zero at the first estimate
    of the completion time; the last line continues below zero. If the value fell in steps, no single peer would be
    worth its price.

    Args:
        values: ``{deadline in seconds: value}``; the values never rise with time.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 4.2.2 and figure 5(c).

    >>> steps({3600: 100.0, 7200: 40.0})
    kf.worth.steps({3600: 100.0, 7200: 40.0})
    """
    return _Lines("steps", _pairs(values))


def points(values: Mapping[float, float]) -> Worth:
    """A worth that is piecewise linear between points, and constant before the first and after the last point.

    Args:
        values: ``{seconds: value}``; the values never rise with time.

    >>> points({0: 100.0, 7200: 0.0})
    kf.worth.points({0: 100.0, 7200: 0.0})
    """
    return _Lines("points", _pairs(values))


Pairs = tuple[tuple[float, float], ...]


@dataclass(frozen=True, repr=False)
class _Power(Worth):
    """The value of finishing a job, which falls to zero as a power of the time."""

    kind: str
    value: float
    zero_at_s: float
    power: float

    def __repr__(self) -> str:
        power = "" if self.kind == "linear" else f", power={self.power!r}"
        return f"kf.worth.{self.kind}({self.value!r}, zero_at_s={self.zero_at_s!r}{power})"

    def check(self) -> None:
        bent = self.kind == "linear" or (_is_number(self.power) and self.power > 1)
        if not (_is_number(self.value) and self.value >= 0 and _is_number(self.zero_at_s) and self.zero_at_s > 0):
            raise PolicyError(
                f"{self!r}: takes a finite value of at least 0, and a finite number of seconds above 0; with a value "
                "below 0 it would rise with time"
            )
        if not bent:
            raise PolicyError(f"{self!r}: takes a finite power above 1; kf.worth.linear is the one with power 1")

    def at(self, seconds: Signal, *, first: Signal) -> Signal:
        share = seconds / self.zero_at_s
        if self.power != 1:
            share = where(share > 0, exp(log(maximum(share, 1e-30)) * self.power), share * 0.0)
        return self.value * (1 - share)


@dataclass(frozen=True, repr=False)
class _Lines(Worth):
    """A worth that is linear between points, or between deadlines ("steps")."""

    kind: Literal["points", "steps"]
    pairs: Pairs

    def __repr__(self) -> str:
        return f"kf.worth.{self.kind}({dict(self.pairs)!r})"

    def check(self) -> None:
        _check_falling(self.pairs, of=repr(self), least_s=0.0 if self.kind == "points" else math.ulp(0.0))
        if self.kind == "steps" and self.pairs[-1][1] < 0:
            raise PolicyError(f"{self!r}: takes values of at least 0; beyond the last deadline the job is worth 0")

    def at(self, seconds: Signal, *, first: Signal) -> Signal:
        if self.kind == "points":
            return _between(seconds, self.pairs)
        deadline, least = self.pairs[-1]
        # If the first estimate is before the last deadline, the line to zero is short and therefore steep.
        length = maximum(first, deadline * 1.001) - deadline
        return _between(seconds, self.pairs) - least * maximum(seconds - deadline, 0.0) / length


def _between(seconds: Signal, pairs: Pairs) -> Signal:
    """The value at a time: the first value minus the loss on each linear piece."""
    value = pairs[0][1] + 0 * seconds  # NaN if the time is NaN
    for (start, high), (end, low) in itertools.pairwise(pairs):
        value = value - (high - low) * clip((seconds - start) / (end - start), 0.0, 1.0)
    return value


def _pairs(values: Mapping[float, float]) -> Pairs:
    """The entries sorted by time if all times are numbers; otherwise unchanged, so that `check` can show them."""
    if not isinstance(values, Mapping):
        return ((math.nan, math.nan),)
    entries = tuple(values.items())
    return tuple(sorted(entries)) if all(_is_number(time) for time, _ in entries) else entries


def _check_falling(pairs: Pairs, *, of: str, least_s: float) -> None:
    if not pairs or any(not _is_number(one) for pair in pairs for one in pair) or pairs[0][0] < least_s:
        raise PolicyError(f"{of}: takes {{seconds: value}} in finite numbers, e.g. {{3600: 100, 7200: 0}}")
    for (start, high), (end, low) in itertools.pairwise(pairs):
        if low > high:
            raise PolicyError(
                f"{of}: rises from {high!r} after {start!r} s to {low!r} after {end!r} s; an earlier end is worth at "
                "least as much as a later one"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
