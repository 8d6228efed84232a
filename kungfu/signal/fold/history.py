"""Folds of one signal: of a number its average, last values and sum, of a truth value its edge and its counts."""

from __future__ import annotations

import math

from kungfu.errors import PolicyError
from kungfu.signal.fold.fold import Fold, StateFields, fold, labelled
from kungfu.signal.fold_methods import fold_method
from kungfu.signal.gate import every_steps, is_gate
from kungfu.signal.node import Condition, Constant, OnRescale, Signal, where
from kungfu.signal.operation import SignalType


@fold_method
def ema(x: Signal, *, decay: float, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.ema`."""
    if not 0 < decay <= 1:
        raise PolicyError(f"ema(decay={decay!r}): the weight of the newest value must lie in (0, 1], e.g. 0.01")

    def update(state: StateFields, value: Signal) -> StateFields:
        average, weight = state
        grown = weight * (1 - decay) + decay
        # Not a quotient of two sums: this form gives the first value back exactly.
        return average + (decay / grown) * (value - average), grown

    def read(state: StateFields) -> Signal:
        return where(state[1] > 0, state[0], math.nan)

    return labelled(fold(update, (0.0, 0.0), x, output=read, on_rescale=on_rescale), label="ema")


@fold_method
def previous(x: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.previous`."""

    def update(state: StateFields, value: Signal) -> StateFields:
        return value, state[0]

    made = fold(update, (math.nan, math.nan), x, output=lambda state: state[1], on_rescale=on_rescale)
    return labelled(made, label="previous")


@fold_method
def delta(x: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.delta`."""

    def update(state: StateFields, value: Signal) -> StateFields:
        return value, value - state[0]

    made = fold(update, (math.nan, math.nan), x, output=lambda state: state[1], on_rescale=on_rescale)
    return labelled(made, label="delta")


@fold_method
def cumulative(x: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.cumulative`."""
    if x.type.dtype == "int64":
        return labelled(fold(lambda total, value: total + value, 0, x, on_rescale=on_rescale), label="cumulative")

    def update(state: StateFields, value: Signal) -> StateFields:
        # Kahan's summation: the sum, and what rounding has added to it too much.
        total, lost = state
        added = value - lost
        grown = total + added
        # What the last addition rounded away is taken along: small values count however large the sum has become.
        return grown, (grown - total) - added

    return labelled(fold(update, (0.0, 0.0), x, on_rescale=on_rescale), label="cumulative")


@fold_method
def hold(x: Signal, *, every: int | None, when: Signal | Condition | None, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.hold`."""
    if (every is None) == (when is None):
        raise PolicyError("hold: write .hold(n) for the value of every n steps, or .hold(when=condition)")
    gate, predicate = _gate_and_predicate(every_steps(every) if when is None and every is not None else when)

    def update(held: Signal, value: Signal, on: Signal) -> Signal:
        return where(on, value, held)

    made = fold(update, math.nan, x, predicate, on_rescale=on_rescale).gated(gate)
    return labelled(made, label="hold")


@fold_method
def rising(flag: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.rising`."""
    _check(flag, method="rising")

    # The state: the flag of the last step, and whether it has risen in this one.
    def update(state: StateFields, now: Signal) -> StateFields:
        return now, now & ~state[0]

    made = fold(update, (False, False), flag, output=lambda state: state[1], on_rescale=on_rescale)
    return labelled(made, label="rising")


@fold_method
def count(flag: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.count`."""
    _check(flag, method="count")
    return labelled(fold(lambda n, now: n + where(now, 1, 0), 0, flag, on_rescale=on_rescale), label="count")


@fold_method
def streak(flag: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.streak`."""
    _check(flag, method="streak")
    return labelled(fold(lambda n, now: where(now, n + 1, 0), 0, flag, on_rescale=on_rescale), label="streak")


def _check(flag: Signal, *, method: str) -> None:
    if flag.type != SignalType("bool"):
        raise PolicyError(f".{method}() of {flag!r}: takes a bool signal; compare first, as in (x > 0).{method}()")


def _gate_and_predicate(when: Signal | Condition | None) -> tuple[Signal, Signal]:
    assert when is not None  # checked by the caller
    if not isinstance(when, Signal):
        return when.gate, when.predicate
    return (when, Constant(True)) if is_gate(when) else (Constant(True), when)
