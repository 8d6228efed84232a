"""Folds of one signal.

Folds of a number: average, last values, sum, and values by cluster size. Folds of a truth value: rising edge, counts,
and rank 0's value in the previous step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kungfu.errors import PolicyError
from kungfu.signal.fold.fold import Filled, Fold, StateFields, fold, labelled
from kungfu.signal.fold_methods import fold_method
from kungfu.signal.gate import is_gate
from kungfu.signal.node import Collective, Condition, Constant, Map, OnRescale, Signal, Source, operate, where
from kungfu.signal.operation import SignalType

_UNSEEN = (math.nan, math.nan)


@fold_method
def ema(x: Signal, *, decay: float, on_rescale: OnRescale) -> Fold:
    if not 0 < decay <= 1:
        raise PolicyError(f"ema(decay={decay!r}): the weight of the newest value must lie in (0, 1], e.g. 0.01")

    def update(state: StateFields, value: Signal) -> StateFields:
        average, weight = state
        grown = weight * (1 - decay) + decay
        # Not a quotient of two sums: this form returns the first value exactly.
        return average + (decay / grown) * (value - average), grown

    def read(state: StateFields) -> Signal:
        return where(state[1] > 0, state[0], math.nan)

    return labelled(fold(update, (0.0, 0.0), x, output=read, on_rescale=on_rescale), label="ema")


@fold_method
def previous(x: Signal, *, on_rescale: OnRescale) -> Fold:
    made = fold(lambda seen, x: (x, seen[0]), _UNSEEN, x, output=lambda seen: seen[1], on_rescale=on_rescale)
    return labelled(made, label="previous")


@fold_method
def delta(x: Signal, *, on_rescale: OnRescale) -> Fold:
    made = fold(lambda seen, x: (x, x - seen[0]), _UNSEEN, x, output=lambda seen: seen[1], on_rescale=on_rescale)
    return labelled(made, label="delta")


@fold_method
def cumulative(x: Signal, *, on_rescale: OnRescale) -> Fold:
    if x.type.dtype == "int64":
        return labelled(fold(lambda total, value: total + value, 0, x, on_rescale=on_rescale), label="cumulative")

    def update(state: StateFields, value: Signal) -> StateFields:
        # Kahan's summation: the sum, and the rounding error in it.
        total, lost = state
        added = value - lost
        grown = total + added
        # The rounding error of the last addition is kept, so small values count however large the sum.
        return grown, (grown - total) - added

    return labelled(fold(update, (0.0, 0.0), x, on_rescale=on_rescale), label="cumulative")


@fold_method
def hold(x: Signal, *, every: int | None, when: Signal | Condition | None, on_rescale: OnRescale) -> Fold:
    if (every is None) == (when is None):
        raise PolicyError("hold: write .hold(n) for the value of every n steps, or .hold(when=condition)")
    gate, predicate = (Constant(True), Constant(True)) if when is None else _gate_and_predicate(when)
    made = fold(lambda held, value, on: where(on, value, held), math.nan, x, predicate, on_rescale=on_rescale)
    return labelled(made.gated(gate) if every is None else made.sampled(every), label="hold")


@dataclass(frozen=True)
class Window:
    """The last values of a signal; `values` is a vector, oldest first, with NaN for values not seen yet."""

    values: Fold

    def sum(self) -> Map:
        """The sum of the values seen: float32, NaN before the first."""
        return operate("sum_present", self.values)

    def std(self) -> Map:
        """The standard deviation of the n values seen (over n, not n - 1): float32, NaN before the first."""
        return operate("std_present", self.values)

    def mean(self) -> Map:
        """The mean of the values seen: float32, NaN before the first."""
        return operate("mean_present", self.values)

    def median(self) -> Map:
        """The median of the values seen (even number: mean of the middle two): float32, NaN before the first."""
        return operate("median_present", self.values)

    def min(self) -> Map:
        """The smallest value seen: float32, NaN before the first."""
        return operate("min_present", self.values)

    def max(self) -> Map:
        """The largest value seen: float32, NaN before the first."""
        return operate("max_present", self.values)

    def sampled(self, every: int) -> Window:
        """A copy of this window that takes only the values of every `every`-th step."""
        return replace(self, values=self.values.sampled(every))


@fold_method
def window(x: Signal, *, length: int, on_rescale: OnRescale) -> Window:
    start = Filled(length, math.nan)
    made = fold(lambda values, x: operate("push", values, x * 1.0), start, x, on_rescale=on_rescale)
    return Window(labelled(made, label=f"window of {length}"))


@fold_method
def by_size(x: Signal, *, largest: int, decay: float) -> Fold:
    if not 0 < decay <= 1:
        raise PolicyError(f"by_size(decay={decay!r}): the weight of the newest value must lie in (0, 1], e.g. 0.1")

    def update(table: Signal, value: Signal, size: Signal) -> Signal:
        entry = table[size]
        smoothed = entry + decay * (value - entry)
        seen = entry == entry  # NaN is not equal to itself
        return operate("scatter", table, size, where(seen, smoothed, value))

    table = Filled(largest + 1, math.nan) if isinstance(largest, int) else Filled(largest, math.nan)
    return labelled(fold(update, table, x, Source("size")), label="table by size")


@fold_method
def rising(flag: Signal, *, on_rescale: OnRescale) -> Fold:
    _check(flag, method="rising")

    # The state: the flag of the last step, and True if the flag has risen in this step.
    def update(state: StateFields, now: Signal) -> StateFields:
        return now, now & ~state[0]

    made = fold(update, (False, False), flag, output=lambda state: state[1], on_rescale=on_rescale)
    return labelled(made, label="rising")


@fold_method
def count(flag: Signal, *, on_rescale: OnRescale) -> Fold:
    _check(flag, method="count")
    return labelled(fold(lambda n, now: n + where(now, 1, 0), 0, flag, on_rescale=on_rescale), label="count")


@fold_method
def streak(flag: Signal, *, on_rescale: OnRescale) -> Fold:
    _check(flag, method="streak")
    return labelled(fold(lambda n, now: where(now, n + 1, 0), 0, flag, on_rescale=on_rescale), label="streak")


def synchronized(predicate: Signal) -> Collective:
    """The previous value of an agreed bool signal, as rank 0 computed it: bool, equal on all peers, usable as a gate.

    Agreed numbers may differ in their last bit between processors, so a comparison could differ between two peers, and
    a peer that skips a message would leave the others waiting. The message of the next step carries rank 0's value to
    all peers. For example, a rule with the trigger ``kf.control.always().when(kf.ops.synchronized(noise > 100))`` gates
    the nodes that only this rule needs. False in the first step.

    Args:
        predicate: An agreed bool signal.

    Raises:
        PolicyError: The signal is local, or not bool.

    Cost:
        One float on the gradient all-reduce, one truth value of state.

    On rescale:
        The value is kept.

    >>> from kungfu.signal import TrainingSignals, is_gate
    >>> is_gate(synchronized(TrainingSignals().mean_loss > 1))
    True
    """
    if predicate.type != SignalType("bool") or predicate.placement == "local":
        raise PolicyError(
            f"synchronized({predicate!r}): takes an agreed bool signal, as in kf.ops.synchronized(mean_loss > 1)"
        )
    before = labelled(fold(lambda _, now: now, False, predicate).before_step(), label="held")
    own = where(before, 1.0, 0.0)
    return Collective("carry", where(Source("rank") == 0, own, 0.0))


def _check(flag: Signal, *, method: str) -> None:
    if flag.type != SignalType("bool"):
        raise PolicyError(f".{method}() of {flag!r}: takes a bool signal; compare first, as in (x > 0).{method}()")


def _gate_and_predicate(when: Signal | Condition) -> tuple[Signal, Signal]:
    if not isinstance(when, Signal):
        return when.gate, when.predicate
    return (when, Constant(True)) if is_gate(when) else (Constant(True), when)
