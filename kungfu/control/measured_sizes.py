"""Comparisons of cluster sizes by the measurements at each size.

A size is compared with a smaller size by an *advantage*, which is above 0 if the additional peers are worth it. The
measurements are noisy, so the advantage has a standard error, and only an advantage beyond three times that error
decides:

- the size *passes* if the advantage exceeds three times the error, and *fails* if it is at most minus that;
- otherwise the comparison is *open*.

A size is compared with the smaller sizes from half of that size on: over twice the distance, an error counts half as
much.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kungfu.ops import any as any_of
from kungfu.ops import argmax, argmin, cast, maximum, places, sqrt, where
from kungfu.signal import Signal, SizeStatistics

_ERRORS = 3.0  # standard errors beyond which a difference is significant
_ROUNDING = 2e-6  # relative rounding error of a mean summed in float32
_LEAST_NUDGE = 1e-12  # so that a mean of 0 without noise has a slope


@dataclass(frozen=True)
class SizeEstimate:
    """The measurements at a cluster size, or at a vector of sizes.

    Attributes:
        peers: The size: float32.
        mean: The mean of the samples; NaN if the size was not measured.
        standard_error: The standard error of that mean.
    """

    peers: Signal
    mean: Signal
    standard_error: Signal

    @property
    def nudge(self) -> Signal:
        """The change of the mean for a difference quotient: the standard error, but at least 1/1000 of the mean."""
        return maximum(maximum(self.standard_error, abs(self.mean) * 1e-3), _LEAST_NUDGE)

    def nudged(self) -> SizeEstimate:
        """The estimate with its mean increased by `nudge`."""
        return SizeEstimate(self.peers, self.mean + self.nudge, self.standard_error)


Advantage = Callable[[SizeEstimate, SizeEstimate], Signal]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a size by its comparisons with smaller sizes: on the peers that it adds to these sizes.

    Attributes:
        size: The size that is judged.
        passed: True if the added peers are shown to be worth it.
        failed: True if the added peers are shown not to be worth it.
        base: The smaller size whose comparison gives the verdict; the next smaller one while all comparisons are open,
            and 0 if no smaller size was measured.
        passes: For each smaller size, true if the peers added to it are shown to be worth it.
        fails: For each smaller size, true if the peers added to it are shown not to be worth it.
    """

    size: Signal
    passed: Signal
    failed: Signal
    base: Signal
    passes: Signal
    fails: Signal


@dataclass(frozen=True)
class BestSize:
    """The best size below a size that failed: the largest one that is no worse than a base, within one standard error.

    The base is the smallest size against which the failing size fails as well, with no passing comparison in between:
    over more peers, an error counts less. One standard error offsets two biases: the base was found because it was
    measured high, and the failing size because it was measured low.

    Attributes:
        size: The best size, at least the base.
        base: The base.
        gains: True if a size between the base and the failing size has a gain over the base.
        is_shown: True if such a gain is shown.
    """

    size: Signal
    base: Signal
    gains: Signal
    is_shown: Signal


@dataclass(frozen=True)
class MeasuredSizes:
    """The table of a walk, and comparisons between its entries; an entry counts only with at least `enough` samples."""

    advantage: Advantage
    table: SizeStatistics
    enough: int

    @property
    def sizes(self) -> Signal:
        """The cluster size of each entry of the table."""
        return places(self.table.count)

    @property
    def known(self) -> Signal:
        """True for each entry of the table that has enough samples."""
        return self.table.count >= self.enough

    def first(self, which: Signal) -> Signal:
        """The smallest of the selected sizes: int64, 0 if no size is selected."""
        return argmin(where(which, cast(self.sizes, "float32"), math.nan))

    def last(self, which: Signal) -> Signal:
        """The largest of the selected sizes: int64, 0 if no size is selected."""
        return argmax(where(which, cast(self.sizes, "float32"), math.nan))

    def at(self, size: Signal) -> SizeEstimate:
        """The estimate at one size."""
        return SizeEstimate(cast(size, "float32"), self.table.mean[size], self.table.standard_error[size])

    def all(self) -> SizeEstimate:
        """The estimates at all sizes."""
        return SizeEstimate(cast(self.sizes, "float32"), self.table.mean, self.table.standard_error)

    def compare(self, fewer: SizeEstimate, more: SizeEstimate) -> tuple[Signal, Signal]:
        """Compares two sizes by the advantage and its error; without noise, an advantage of 0 fails.

        Returns:
            Two truth values: the first is true if the additional peers of `more` are shown to be worth it, the second
            if they are shown not to be. If both are false, the comparison is open. A gain within float32 rounding
            counts as 0.
        """
        gain, error, rounding = self.gain(fewer, more)
        margin = _ERRORS * error
        return (gain > margin) & (gain > rounding), gain <= rounding - margin

    def gain(self, fewer: SizeEstimate, more: SizeEstimate) -> tuple[Signal, Signal, Signal]:
        """The advantage of `more`, its standard error (linear propagation from both means), and its rounding error."""
        gain = self.advantage(fewer, more)
        by_fewer = (self.advantage(fewer.nudged(), more) - gain) / fewer.nudge
        by_more = (self.advantage(fewer, more.nudged()) - gain) / more.nudge
        in_fewer, in_more = by_fewer * fewer.standard_error, by_more * more.standard_error
        rounding = _ROUNDING * (abs(by_fewer * fewer.mean) + abs(by_more * more.mean))
        return gain, sqrt(in_fewer * in_fewer + in_more * in_more), rounding

    def verdict(self, size: Signal, *, reach: int) -> Verdict:
        """The verdict on a size, by the nearest smaller size whose comparison with it is not open. But one failure
        against a size at most `reach` peers smaller is enough for "failed". Sizes below half are not compared, except
        for the next smaller size: on a curve that bends, the mean gain since then is not that of the last peers."""
        smaller = self.known & (self.sizes < size) & self.known[size]
        below = smaller & ((2 * self.sizes >= size) | (self.sizes == self.last(smaller)))
        passes, fails = (below & one for one in self.compare(self.all(), self.at(size)))
        nearest, near = self.last(passes | fails), fails & (self.sizes >= size - reach)
        failed = any_of(near) | fails[nearest]
        base = where(nearest > 0, nearest, self.last(below))
        base = where(any_of(near), self.last(near), base)
        return Verdict(size, passes[nearest] & ~failed, failed, base, passes, fails)

    def best(self, failing: Verdict) -> BestSize:
        """The size to return to from a size that failed."""
        passing = self.last(failing.passes & (self.sizes < failing.base))
        base = self.first(failing.fails & (self.sizes > passing) & (self.sizes <= failing.base))
        gain, error, rounding = self.gain(self.at(base), self.all())
        between = self.known & (self.sizes > base) & (self.sizes < failing.size)
        gains = between & (gain > rounding)
        best = maximum(base, self.last(between & (gain > rounding - error)))
        return BestSize(best, base, any_of(gains), any_of(gains & (gain > _ERRORS * error)))
