"""Folds of a truth value: its edge, and in how many steps it was true."""

from __future__ import annotations

from kungfu.errors import PolicyError
from kungfu.signal.fold.fold import Fields, Fold, fold, labelled
from kungfu.signal.node import OnRescale, Signal, apply
from kungfu.signal.operation import OPERATORS, SignalType

__all__ = ["count", "rising", "streak"]


def rising(flag: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.rising`."""
    _check(flag, method="rising")

    def update(state: Fields, now: Signal) -> Fields:
        return now, now & ~state[0]

    made = fold(update, (False, False), flag, output=lambda state: state[1], on_rescale=on_rescale)
    return labelled(made, label="rising")


def count(flag: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.count`."""
    _check(flag, method="count")
    return labelled(fold(lambda n, now: n + _choice(now, 1, 0), 0, flag, on_rescale=on_rescale), label="count")


def streak(flag: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.streak`."""
    _check(flag, method="streak")
    return labelled(fold(lambda n, now: _choice(now, n + 1, 0), 0, flag, on_rescale=on_rescale), label="streak")


def _check(flag: Signal, *, method: str) -> None:
    if flag.type != SignalType("bool"):
        raise PolicyError(f".{method}() of {flag!r}: takes a bool signal; compare first, as in (x > 0).{method}()")


def _choice(condition: Signal, then: Signal | int, otherwise: Signal | int) -> Signal:
    return apply(OPERATORS["where"], condition, then, otherwise)
