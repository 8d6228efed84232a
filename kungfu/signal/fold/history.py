"""Folds of a number: its average, its last values, its sum."""

from __future__ import annotations

import math

from kungfu.errors import PolicyError
from kungfu.signal.fold.fold import Fields, Fold, fold, labelled
from kungfu.signal.gate import every_steps, is_gate
from kungfu.signal.node import Condition, Constant, OnRescale, Signal, apply
from kungfu.signal.operation import OPERATORS

__all__ = ["cumulative", "delta", "ema", "hold", "previous"]


def ema(x: Signal, *, decay: float, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.ema`."""
    if not 0 < decay <= 1:
        raise PolicyError(f"ema(decay={decay!r}): the weight of the newest value must lie in (0, 1], e.g. 0.01")

    def update(state: Fields, value: Signal) -> Fields:
        average, weight = state
        grown = weight * (1 - decay) + decay
        # Not a quotient of two sums: this form gives the first value back exactly.
        return average + (decay / grown) * (value - average), grown

    def read(state: Fields) -> Signal:
        return _where(state[1] > 0, state[0], math.nan)

    return labelled(fold(update, (0.0, 0.0), x, output=read, on_rescale=on_rescale), label="ema")


def previous(x: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.previous`."""

    def update(state: Fields, value: Signal) -> Fields:
        return value, state[0]

    made = fold(update, (math.nan, math.nan), x, output=lambda state: state[1], on_rescale=on_rescale)
    return labelled(made, label="previous")


def delta(x: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.delta`."""

    def update(state: Fields, value: Signal) -> Fields:
        return value, value - state[0]

    made = fold(update, (math.nan, math.nan), x, output=lambda state: state[1], on_rescale=on_rescale)
    return labelled(made, label="delta")


def cumulative(x: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.cumulative`."""
    if x.type.dtype == "int64":
        return labelled(fold(lambda total, value: total + value, 0, x, on_rescale=on_rescale), label="cumulative")

    def update(state: Fields, value: Signal) -> Fields:
        total, lost = state
        added = value - lost
        grown = total + added
        # What the last addition rounded away is taken along: small values count however large the sum has become.
        return grown, (grown - total) - added

    return labelled(fold(update, (0.0, 0.0), x, on_rescale=on_rescale), label="cumulative")


def hold(x: Signal, *, every: int | None, when: Signal | Condition | None, on_rescale: OnRescale) -> Fold:
    """See `FoldMethods.hold`."""
    if (every is None) == (when is None):
        raise PolicyError("hold: write .hold(n) for the value of every n steps, or .hold(when=condition)")
    gate, predicate = _gate_and_predicate(every_steps(every) if when is None and every is not None else when)

    def update(held: Signal, value: Signal, on: Signal) -> Signal:
        return _where(on, value, held)

    made = fold(update, math.nan, x, predicate, on_rescale=on_rescale).gated(gate)
    return labelled(made, label="hold")


def _gate_and_predicate(when: Signal | Condition | None) -> tuple[Signal, Signal]:
    assert when is not None  # checked by the caller
    if not isinstance(when, Signal):
        return when.gate, when.predicate
    return (when, Constant(True)) if is_gate(when) else (Constant(True), when)


def _where(condition: Signal, then: Signal, otherwise: Signal | float) -> Signal:
    return apply(OPERATORS["where"], condition, then, otherwise)
