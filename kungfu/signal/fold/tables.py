"""Folds of many numbers: the last values of a signal, and its values by cluster size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kungfu.errors import PolicyError
from kungfu.signal.fold.fold import Filled, Fold, fold, labelled
from kungfu.signal.fold_methods import fold_method
from kungfu.signal.node import Map, OnRescale, Signal, Source, operate, where


@dataclass(frozen=True)
class Window:
    """The last values of a signal; `values` is the vector of them, oldest first, NaN if none was seen yet."""

    values: Fold

    def mean(self) -> Map:
        """The mean of the values seen: float32, NaN before the first."""
        return operate("mean_present", self.values)

    def median(self) -> Map:
        """The median of the values seen, the mean of the middle two for an even number: float32, NaN before."""
        return operate("median_present", self.values)

    def min(self) -> Map:
        """The smallest value seen: float32, NaN before the first."""
        return operate("min_present", self.values)

    def max(self) -> Map:
        """The largest value seen: float32, NaN before the first."""
        return operate("max_present", self.values)

    def sampled(self, every: int) -> Window:
        """This window, over the values of every N steps."""
        return replace(self, values=self.values.sampled(every))


@fold_method
def window(x: Signal, *, length: int, on_rescale: OnRescale) -> Window:
    """See `FoldMethods.window`."""

    def update(values: Signal, value: Signal) -> Signal:
        return operate("push", values, value * 1.0)

    made = fold(update, Filled(length, math.nan), x, on_rescale=on_rescale)
    return Window(labelled(made, label=f"window of {length}"))


@fold_method
def by_size(x: Signal, *, largest: int, decay: float) -> Fold:
    """See `FoldMethods.by_size`."""
    if not 0 < decay <= 1:
        raise PolicyError(f"by_size(decay={decay!r}): the weight of the newest value must lie in (0, 1], e.g. 0.1")

    def update(table: Signal, value: Signal, size: Signal) -> Signal:
        entry = table[size]
        smoothed = entry + decay * (value - entry)
        seen = entry == entry  # NaN is not equal to itself
        return operate("scatter", table, size, where(seen, smoothed, value))

    table = Filled(largest + 1, math.nan) if isinstance(largest, int) else Filled(largest, math.nan)
    return labelled(fold(update, table, x, Source("size")), label="table by size")
