"""Statistics of a signal by cluster size: number, mean, variance and age of the samples at each size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kungfu.errors import PolicyError
from kungfu.signal.fold.fold import Filled, Fold, StateFields, fold, labelled
from kungfu.signal.fold_methods import fold_method
from kungfu.signal.node import Signal, Source, as_signal, operate, where
from kungfu.signal.whole_number import is_whole_number

_NEVER = 1 << 40  # steps


@dataclass(frozen=True)
class SizeStatistics:
    """The statistics of a signal's samples by cluster size; entry *n* of each vector is for *n* peers.

    Attributes:
        count: The number of samples: int64, 0 without samples, or if the entry was deleted or has expired.
        mean: The mean of the samples: float32, NaN without samples.
        variance: The unbiased variance of the samples: float32, NaN with fewer than two samples.
        age: The number of steps from the last sample to the previous step: int64.
    """

    count: Signal
    mean: Signal
    variance: Signal
    age: Signal

    @property
    def standard_error(self) -> Signal:
        """The standard error of the mean, ``sqrt(variance / count)``: float32, NaN with fewer than two samples."""
        return operate("sqrt", self.variance / self.count)


@dataclass(frozen=True)
class _Sample:
    """The sample of a step: its value (0 if not finite), a flag (true if finite), and the cluster size."""

    value: Signal
    counts: Signal
    size: Signal


@fold_method
def statistics_by_size(
    x: Signal, *, largest: int, forget_after: int | None, strike_all: Signal | None
) -> SizeStatistics:
    if not is_whole_number(largest, least=1, most=9999):
        raise PolicyError(f"statistics_by_size({largest!r}): takes the largest size, a whole number from 1 to 9999")
    if forget_after is not None and (isinstance(forget_after, bool) or not forget_after >= 1):
        raise PolicyError(
            f"statistics_by_size(forget_after={forget_after!r}): takes a number of steps of at least 1, or None"
        )
    finite = operate("is_finite", x)
    sample = _Sample(where(finite, x * 1.0, 0.0), finite, Source("size"))
    length = largest + 1
    age = Source("step") - 1 - _last_steps(sample, length=length)
    is_old = age > (_NEVER if forget_after is None else forget_after)
    counts = _counts(sample, is_old[sample.size], as_signal(False if strike_all is None else strike_all), length=length)
    means = _means(sample, counts[sample.size], length=length)
    squares = _squares(sample, means[sample.size], counts[sample.size], length=length)
    # An expired entry of the present size has been restarted by now.
    count = where(is_old & (operate("places", counts) != sample.size), 0, counts)
    return SizeStatistics(
        count=count,
        mean=where(count > 0, means, math.nan),
        variance=where(count > 1, squares / (count - 1), math.nan),
        age=age,
    )


def _last_steps(sample: _Sample, *, length: int) -> Fold:
    """The step of the last sample of each size, as of the previous step."""

    def update(steps: Signal, counts: Signal, size: Signal, step: Signal) -> Signal:
        return where(counts, operate("scatter", steps, size, step), steps)

    made = fold(update, Filled(length, 0), sample.counts, sample.size, Source("step"))
    return labelled(made.before_step(), label="last step by size")


def _counts(sample: _Sample, is_old: Signal, strike_all: Signal, *, length: int) -> Fold:
    """The number of samples of each size since its entry began."""

    def update(state: StateFields, counts: Signal, size: Signal, view: Signal, *strikes: Signal) -> StateFields:
        table, seen_view, seen_size = state
        old, everything = strikes
        # A new peer has joined, by growth or as a replacement; a view that shrank has no new peer.
        joined = (seen_view >= 0) & (view != seen_view) & (size >= seen_size)
        kept = where(everything, 0, table)
        here = where(joined | old, 0, kept[size]) + where(counts, 1, 0)
        return operate("scatter", kept, size, here), view, size

    start = (Filled(length, 0), -1, 0)
    made = fold(update, start, sample.counts, sample.size, Source("view"), is_old, strike_all)
    return labelled(made, label="samples by size")


def _means(sample: _Sample, number: Signal, *, length: int) -> Fold:
    """The mean for each size; `number` is the number of samples of the present size, including this step's."""

    def update(means: Signal, value: Signal, counts: Signal, size: Signal, n: Signal) -> Signal:
        here = means[size]
        moved = where(n > 1, here + (value - here) / n, value)
        return operate("scatter", means, size, where(counts, moved, here))

    made = fold(update, Filled(length, 0.0), sample.value, sample.counts, sample.size, number)
    return labelled(made, label="mean by size")


def _squares(sample: _Sample, mean: Signal, number: Signal, *, length: int) -> Fold:
    """The sum of the squared deviations from the mean for each size, by Welford's update with the new mean."""

    def update(squares: Signal, value: Signal, counts: Signal, size: Signal, *present: Signal) -> Signal:
        mean, n = present
        grown = squares[size] + (value - mean) * (value - mean) * n / (n - 1)
        return operate("scatter", squares, size, where(counts, where(n > 1, grown, 0.0), squares[size]))

    made = fold(update, Filled(length, 0.0), sample.value, sample.counts, sample.size, mean, number)
    return labelled(made, label="squares by size")
