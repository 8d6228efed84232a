"""Hill climbing from cluster size to cluster size, by measurements at the sizes visited before.

A size is compared with a smaller size by an *advantage*, which is above 0 if the additional peers are worth it. The
measurements are noisy, so the advantage has a standard error, and only an advantage beyond twice that error decides:

- the size *passes* if the advantage exceeds twice the error, and *fails* if it is at most minus twice the error;
- otherwise the comparison is open. The walk waits for more samples, up to a limit; then it goes one unit further, and
  compares that size with all smaller sizes: over twice the distance, the error counts half as much. So a criterion
  fails only if failure was shown, in line with the paper's "the point before the conditions first begin to fail".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kungfu.errors import PolicyError
from kungfu.ops import any as any_of
from kungfu.ops import argmax, argmin, cast, clip, fold, is_finite, maximum, minimum, places, sqrt, where
from kungfu.signal import Signal, SizeStatistics, Source
from kungfu.signal.whole_number import is_whole_number

_ERRORS = 2.0  # standard errors beyond which a difference is significant
_ROUNDING = 2e-6  # relative rounding error of a mean summed in float32
_LEAST_NUDGE = 1e-12  # so that a mean of 0 without noise has a slope
_LEAST_SAMPLES = 10  # of a size, whatever the interval of decisions


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
class Walk:
    """The next size of a walk, and the comparison that decides it; without a comparison, the gain is NaN.

    Attributes:
        size: The size to try next: float32, peers; NaN while the walk waits for samples.
        fewer: The smaller of the two compared sizes; without a comparison, the present size.
        more: The larger of the two compared sizes.
        gain: The advantage of `more` over `fewer`.
        gain_error: The standard error of the gain.
    """

    size: Signal
    fewer: SizeEstimate
    more: SizeEstimate
    gain: Signal
    gain_error: Signal


@dataclass(frozen=True)
class _Verdict:
    """The verdict on the peers by which a size exceeds smaller sizes, or is exceeded by larger sizes.

    Attributes:
        compared: True if one of these sizes was measured.
        passes: True if the additional peers are shown to be worth it.
        fails: True if the additional peers are shown not to be worth it.
        base: The size, among these sizes, whose comparison gives the verdict.
    """

    compared: Signal
    passes: Signal
    fails: Signal
    base: Signal


@dataclass(frozen=True)
class _Measured:
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

    def fails_by_itself(self, unit: int) -> Signal:
        """True for each size that fails against the size one unit smaller: its last `unit` peers are not worth it."""
        before = self.sizes - unit
        return self.known & self.known[before] & (before > 0) & self.compare(self.at(before), self.all())[1]

    def verdict(self, size: Signal, *, unit: int, look_ahead: int) -> _Verdict:
        """The verdict on a size, by the nearest smaller size whose comparison with it is not open. But one failure
        against the next smaller size, or one of the `look_ahead` sizes below that size, is enough for "fails"."""
        reach = (1 + look_ahead) * unit
        below = self.known & (self.sizes < size) & self.known[size]
        passes, fails = (below & one for one in self.compare(self.all(), self.at(size)))
        nearest = argmax(where(passes | fails, cast(self.sizes, "float32"), math.nan))
        near = fails & (self.sizes >= size - reach)
        if look_ahead:
            # The walk returns to the last size whose added peers are worth it, however far it looked beyond that size.
            sound = near & ~self.fails_by_itself(unit)
            near = where(any_of(sound), sound, near)
        last = argmax(where(near, cast(self.sizes, "float32"), math.nan))
        base = where(any_of(near), last, nearest)
        failed = any_of(near) | fails[nearest]
        return _Verdict(any_of(below), passes[nearest] & ~failed, failed, base)

    def above(self, size: Signal) -> _Verdict:
        """The verdict on a size, by the nearest larger size whose comparison with it is not open."""
        above = self.known & (self.sizes > size) & self.known[size]
        passes, fails = (above & one for one in self.compare(self.at(size), self.all()))
        nearest = argmin(where(passes | fails, cast(self.sizes, "float32"), math.nan))
        return _Verdict(any_of(above), passes[nearest], fails[nearest], nearest)

    def by_comparison(self, size: Signal, *, unit: int, look_ahead: int) -> tuple[SizeEstimate, SizeEstimate]:
        """The estimates whose comparison decides the next move from `size`; without one, the second mean is NaN."""
        here, larger = self.verdict(size, unit=unit, look_ahead=look_ahead), self.above(size)
        # An open comparison is the comparison with the next smaller size.
        below = argmax(where(self.known & (self.sizes < size), cast(self.sizes, "float32"), math.nan))
        base = where(here.passes | here.fails, here.base, below)
        goes_up = ~here.fails & (larger.passes | larger.fails)
        fewer = where(~goes_up & here.compared, base, size)
        more = where(goes_up, larger.base, where(here.compared, size, 0))
        return self.at(fewer), self.at(more)


def hill_climb(
    advantage: Advantage,
    table: SizeStatistics,
    *,
    unit: int,
    min_peers: int,
    max_peers: int,
    look_ahead: int = 0,
    min_samples: int = 10,
    max_samples: int = 30,
) -> Signal:
    """The next size to try from the present size, so that the job settles at the last size whose added peers pay off.

    From a size k with at least `min_samples` samples, with u = `unit`:

    - if k fails against a smaller size j (the added peers are not worth it): down, to ``j - u`` if nothing below j was
      measured, else to j;
    - else up to ``k + u``, if that size was not measured or does not fail;
    - else down to ``k - u``, if nothing below k was measured;
    - else the size remains k.

    With more peers than `max_peers`, the next size is `max_peers` at once.

    A walk from size to size first tries to grow, and to shrink at the upper limit. It grows as soon as k passes (the
    added peers are worth it) or has no comparison; it shrinks, or grows after an open comparison, only with
    `max_samples` samples. Sizes outside the job's limits, and the size that was refused last, are skipped. The final
    size is a local optimum: sizes beyond a failing size are tried only with `look_ahead`. The result is a float32
    scalar, in peers, equal on all peers if the table is; NaN while the walk waits for samples.

    Args:
        advantage: ``advantage(fewer, more)`` of two `SizeEstimate` is the gain of the larger size over the smaller
            size: the larger one is worth it only if the gain is above 0. Either estimate may be a vector of sizes.
        table: The measurements at each size.
        unit: Peers added or removed at once, at least 1.
        min_peers: The smallest size to try, peers.
        max_peers: The largest size to try, peers.
        look_ahead: Units tried beyond a failing size before the walk returns, at least 0.
        min_samples: Samples after which a size counts as measured, at least 2.
        max_samples: Samples after which an open comparison is decided, at least `min_samples`.

    Raises:
        PolicyError: A number is out of range.

    Cost:
        No message, and no state in addition to the table.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 4.1 and figure 3.
    """
    _check(unit=unit, min_peers=min_peers, max_peers=max_peers, look_ahead=look_ahead)
    if not 2 <= min_samples <= max_samples:
        raise PolicyError(f"{min_samples=}, {max_samples=}: takes 2 <= min_samples <= max_samples")
    fewest, most = maximum(Source("min_size"), min_peers), minimum(Source("max_size"), max_peers)
    wanted = _next_size(
        _Measured(advantage, table, min_samples), unit=unit, fewest=fewest, most=most, look_ahead=look_ahead,
        max_samples=max_samples,
    )  # fmt: skip
    # Beyond the upper limit nothing is measured: the walk begins at the limit.
    size, largest = Source("size"), maximum(fewest, most)
    return where(size > largest, largest * 1.0, wanted)


def _next_size(
    measured: _Measured, *, unit: int, fewest: Signal, most: Signal, look_ahead: int, max_samples: int
) -> Signal:
    """The next size of the walk from a size within the limits: float32, NaN while the walk waits for samples."""
    size, reach = Source("size"), (1 + look_ahead) * unit
    below, above = size - unit, size + unit
    is_known, known_above = measured.known[size], measured.known[above]
    larger = measured.above(size)
    here, there = (measured.verdict(one, unit=unit, look_ahead=look_ahead) for one in (size, above))
    patient = measured.table.count[size] >= max_samples
    reachable = (above <= most) & (above != Source("refused_size"))

    # The present size failed: try further sizes if allowed, then return, or go below the size it failed against.
    lower = here.base - unit
    is_lowest = ~any_of(measured.known & (measured.sizes < here.base))
    back = where(is_lowest & (lower >= fewest), lower, here.base)
    looks_ahead = reachable & ~known_above & (above - here.base <= reach) if look_ahead else reachable & False

    # The present size did not fail: grow, unless growth failed or is impossible; else shrink or stay.
    climbs = reachable & (~known_above | (~larger.fails & ~there.fails))
    is_clear = climbs & where(known_above, larger.passes, here.passes | ~here.compared)
    looks_down = ~here.compared & (below >= fewest)
    onwards = where(climbs, above, where(looks_down, below, size))

    wanted = where(here.fails, where(looks_ahead, above, back), onwards)
    decided = is_known & (patient | (is_clear & ~here.fails))
    return where(decided, clip(wanted * 1.0, fewest, most), math.nan)


def settled_walk(
    advantage: Advantage,
    table: SizeStatistics,
    *,
    unit: int,
    min_peers: int,
    max_peers: int,
    every: int,
    view_steps: Signal,
    moved: Signal,
    look_ahead: int = 0,
) -> Walk:
    """A walk from size to size by `hill_climb`, decided every `every` steps, and ended and resumed by `settle`.

    With n the larger of `every` and 10, a size needs at least n samples, and 3 n if its comparison is open. The walk
    ends only 6 n steps after the last change of size. Results are float32 scalars, equal on all peers if the table is.

    Args:
        advantage: As for `hill_climb`.
        table: As for `hill_climb`.
        unit: As for `hill_climb`.
        min_peers: As for `hill_climb`.
        max_peers: As for `hill_climb`.
        every: Steps between two decisions, at least 1; a size needs at least 10 samples in any case.
        view_steps: Steps since the size last changed: int64.
        moved: As for `settle`.
        look_ahead: As for `hill_climb`.

    Raises:
        PolicyError: A number is out of range.

    Cost:
        The cost of `settle`, plus the cost of the table.

    On rescale:
        The state is kept, as in `settle`.
    """
    samples = max(every, _LEAST_SAMPLES)
    wanted = hill_climb(
        advantage, table, unit=unit, min_peers=min_peers, max_peers=max_peers, look_ahead=look_ahead,
        min_samples=samples, max_samples=3 * samples,
    )  # fmt: skip
    measured = _Measured(advantage, table, samples)
    fewer, more = measured.by_comparison(Source("size"), unit=unit, look_ahead=look_ahead)
    gain, error, _ = measured.gain(fewer, more)
    more = SizeEstimate(where(more.peers > 0, more.peers, math.nan), more.mean, more.standard_error)
    return Walk(settle(wanted, every=every, ready=view_steps >= 6 * samples, moved=moved), fewer, more, gain, error)


def settle(wanted: Signal, *, every: int, ready: Signal, moved: Signal) -> Signal:
    """The size that a walk from size to size (see `hill_climb`) requests; the present size once the walk has ended.

    A walk ends when it requests the present size in a step in which `ready` is true. The walk resumes when `moved`
    increases, or the job's size differs from the size at which the walk ended. Until then measurements have no effect.

    Args:
        wanted: The result of `hill_climb`; while it is NaN, nothing is decided.
        every: Steps between two evaluations, at least 1.
        ready: True if the walk may end: bool.
        moved: The number of times that all measurements became obsolete: int64.

    Cost:
        17 bytes of state.

    On rescale:
        The state is kept.
    """
    size = Source("size")

    def update(state: tuple[Signal, ...], stays: Signal, now: Signal, moves: Signal) -> tuple[Signal, ...]:
        settled, at, seen = state
        goes_on = settled & (now == at) & (moves == seen)
        return goes_on | stays, now, moves

    stays = ready & is_finite(wanted) & (wanted == size * 1.0)
    made = fold(update, (False, 0, 0), stays, size, moved, output=lambda state: state[0])
    return where(made.sampled(every).named("settled"), size * 1.0, wanted)


def check_peers(*, min_peers: int, max_peers: int) -> None:
    """Raises `PolicyError` unless both limits are whole numbers, and ``1 <= min_peers <= max_peers``."""
    if not is_whole_number(min_peers, least=1) or not is_whole_number(max_peers, least=min_peers):
        raise PolicyError(
            f"min_peers={min_peers!r}, max_peers={max_peers!r}: takes 1 <= min_peers <= max_peers, in whole numbers"
        )


def _check(*, unit: int, min_peers: int, max_peers: int, look_ahead: int) -> None:
    check_peers(min_peers=min_peers, max_peers=max_peers)
    if not is_whole_number(unit, least=1):
        raise PolicyError(f"unit={unit!r}: takes a whole number of peers to add at once, at least 1")
    if not is_whole_number(look_ahead, least=0):
        raise PolicyError(f"look_ahead={look_ahead!r}: takes a whole number of units, at least 0")
