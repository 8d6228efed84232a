"""Hill climbing from cluster size to cluster size, by measurements at the sizes visited before.

While the comparisons of a size with the smaller sizes are open (see ``control.measured_sizes``), the walk waits for
more samples, up to a limit; then it goes one unit further. So a criterion fails only if failure was shown, in line with
the paper's "the point before the conditions first begin to fail".

A failure over several units shows that the last size is too large, not which smaller size is best. The walk returns to
the last size that is no worse than the distant size against which the last size failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from kungfu.control.measured_sizes import Advantage, BestSize, MeasuredSizes, SizeEstimate, Verdict
from kungfu.errors import PolicyError
from kungfu.ops import clip, fold, is_finite, maximum, minimum, where
from kungfu.signal import Signal, SizeStatistics, Source
from kungfu.signal.whole_number import is_whole_number

Growth = Literal["linear", "exponential"]
"""The steps of a walk that grows: one unit at a time, or one, two, four units and so on."""

_LEAST_SAMPLES = 10  # of a size, whatever the interval of decisions


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
class _Schedule:
    """The sizes that a walk may try: multiples of `unit` peers from a measured size, between `fewest` and `most`."""

    unit: int
    growth: Growth
    fewest: Signal
    most: Signal

    def above(self, size: Signal, before: Signal) -> Signal:
        """The size to try above the largest measured size; `before` is the size measured below it, or 0."""
        return size + minimum(self._step(size - before, before), (self.most - size) // self.unit * self.unit)

    def below(self, size: Signal, before: Signal) -> Signal:
        """The size to try below the smallest measured size; `before` is the size measured above it, or 0."""
        return size - minimum(self._step(before - size, before), (size - self.fewest) // self.unit * self.unit)

    def between(self, low: Signal, high: Signal) -> Signal:
        """The size to try between two measured sizes; `low` if they are one unit apart."""
        return low + (high - low) // (2 * self.unit) * self.unit

    def _step(self, last: Signal, before: Signal) -> Signal | int:
        return self.unit if self.growth == "linear" else where(before > 0, 2 * last, self.unit)


@dataclass(frozen=True)
class _Situation:
    """The measured sizes around the present size, 0 where there is none, and the verdicts on them.

    Attributes:
        size: The present size.
        below: The next smaller measured size.
        above: The next larger measured size.
        top: The largest measured size up to twice the present size, or `above` if that is larger.
        here: The verdict on the present size.
        there: The verdict on the next larger measured size.
        summit: The verdict on `top`.
    """

    size: Signal
    below: Signal
    above: Signal
    top: Signal
    here: Verdict
    there: Verdict
    summit: Verdict

    @property
    def is_top(self) -> Signal:
        """True if no larger size was measured."""
        return self.above == 0

    @property
    def failing(self) -> Verdict:
        """The verdict on the failing size that bounds the walk; a verdict that has not failed if no size failed."""
        return _chosen(self.here.failed, self.here, _chosen(self.summit.failed, self.summit, self.there))

    @property
    def largest(self) -> Verdict:
        """The verdict on the largest of the three sizes."""
        return _chosen(self.is_top, self.here, self.summit)


def _chosen(flag: Signal, one: Verdict, other: Verdict) -> Verdict:
    """The first verdict where the flag is true, else the second one."""
    return Verdict(*(where(flag, vars(one)[name], vars(other)[name]) for name in vars(one)))


def hill_climb(
    advantage: Advantage,
    table: SizeStatistics,
    *,
    unit: int,
    min_peers: int,
    max_peers: int,
    growth: Growth = "linear",
    look_ahead: int = 0,
    min_samples: int = 10,
    max_samples: int = 30,
) -> Signal:
    """The next size to try from the present size, so that the job settles at the last size whose added peers pay off.

    A size *fails* if the peers that it adds to a smaller size are shown not to be worth it: by its comparison with the
    next smaller size, or with the nearest smaller size whose comparison is not open. From a size k with at least
    `min_samples` samples, with u = `unit`:

    - if k or a larger measured size fails, the job goes to the *best* size below: the largest one whose gain over a
      size j is at least minus its standard error, or j itself. Here j is the smallest size, from half the failing size
      on, against which that size fails as well. It goes up only from the smallest measured size, or if the next larger
      one passes against k. If nothing below j was measured, and no gain over it is shown, the job goes to ``j - u``;
    - if no measured size fails, the job grows by u from the largest one. If it cannot grow, and the comparison is open,
      it shrinks by u from the smallest one, down to half of the largest one.

    If sizes between two measured sizes were skipped, the walk halves the range on its way, in multiples of u, until the
    last unit of the final size is judged. With more peers than `max_peers`, the next size is `max_peers` at once.

    The job grows without a comparison, or as soon as k passes, by one unit or by several, and its estimated gain over
    the next smaller size is above 0; any other decision takes `max_samples` samples. Sizes outside the job's limits,
    and the size that was refused last, are skipped. The final size is a local optimum: sizes beyond a failing size are
    tried only with `look_ahead`. The result is a float32 scalar, in peers, equal on all peers if the table is; NaN
    while the walk waits for samples.

    Args:
        advantage: ``advantage(fewer, more)`` of two `SizeEstimate` is the gain of the larger size over the smaller
            size: the larger one is worth it only if the gain is above 0. Either estimate may be a vector of sizes.
        table: The measurements at each size.
        unit: Peers added or removed at once, at least 1.
        min_peers: The smallest size to try, peers.
        max_peers: The largest size to try, peers.
        growth: "linear" adds `unit` peers at a time; "exponential" adds `unit`, then 2 `unit`, 4 `unit` and so on, and
            removes peers likewise.
        look_ahead: Units tried beyond a failing size before the walk returns, at least 0.
        min_samples: Samples after which a size counts as measured, at least 2.
        max_samples: Samples after which an open comparison is decided, at least `min_samples`.

    Raises:
        PolicyError: A number is out of range, or there is no such growth.

    Cost:
        No message, and no state in addition to the table.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 4.1 and figure 3; section 8 for
        the exponential schedule.
    """
    measured = MeasuredSizes(advantage, table, min_samples)
    return _walk(
        measured, unit=unit, growth=growth, min_peers=min_peers, max_peers=max_peers, look_ahead=look_ahead,
        max_samples=max_samples,
    ).size  # fmt: skip


def _walk(
    measured: MeasuredSizes,
    *,
    unit: int,
    growth: Growth,
    min_peers: int,
    max_peers: int,
    look_ahead: int,
    max_samples: int,
) -> Walk:
    """The walk within its own limits and those of the job; raises `PolicyError` if a number is out of range."""
    check_peers(min_peers=min_peers, max_peers=max_peers)
    if not is_whole_number(unit, least=1):
        raise PolicyError(f"unit={unit!r}: takes a whole number of peers to add at once, at least 1")
    if growth not in (kinds := get_args(Growth)):
        raise PolicyError(f"growth={growth!r}: takes one of {', '.join(map(repr, kinds))}")
    if not is_whole_number(look_ahead, least=0):
        raise PolicyError(f"look_ahead={look_ahead!r}: takes a whole number of units, at least 0")
    if not 2 <= measured.enough <= max_samples:
        raise PolicyError(f"min_samples={measured.enough}, {max_samples=}: takes 2 <= min_samples <= max_samples")
    fewest, most = maximum(Source("min_size"), min_peers), minimum(Source("max_size"), max_peers)
    return _Climb(measured, _Schedule(unit, growth, fewest, most), look_ahead).walk(max_samples=max_samples)


@dataclass(frozen=True)
class _Climb:
    """The rule that finds the next size of a walk."""

    measured: MeasuredSizes
    schedule: _Schedule
    look_ahead: int

    def walk(self, *, max_samples: int) -> Walk:
        """The next size from the present size, and the comparison that decides it."""
        measured, refused, at = self.measured, Source("refused_size"), self._situation()
        size, failing, best = at.size, at.failing, measured.best(at.failing)
        # Up only by a shown gain: the sign of a gain changes with the samples. The smallest size was never judged.
        is_shown = (at.there.passed & (at.there.base == size)) | (size == measured.first(measured.known))
        climbs = failing.failed & ~at.here.failed & ~at.there.failed & (best.size >= at.above) & is_shown
        wanted = where(failing.failed, self._after_failure(at, best, climbs), self._without_failure(at))
        # Before the walk ends, the last unit of the final size is judged by itself.
        middle = self.schedule.between(at.below, size)
        wanted = where((wanted == size) & (at.below > 0) & (middle > at.below), middle, wanted)
        wanted = where(wanted == refused, size, wanted)
        # Growth after a clear gain, or without a comparison, needs few samples. A gain over several units is enough if
        # the estimate of the last unit agrees: by Amdahl's law both have one efficiency, and the first a smaller error.
        gain, _, rounding = measured.gain(measured.at(at.below), measured.at(size))
        is_clear = where(at.is_top, (at.here.passed & (gain > rounding)) | (at.below == 0), at.there.passed)
        is_clear = is_clear & ~at.here.failed
        decided = (measured.table.count[size] >= max_samples) | (is_clear & (wanted > size))
        wanted = clip(wanted * 1.0, self.schedule.fewest, self.schedule.most)
        wanted = where(measured.known[size] & decided, wanted, math.nan)
        # Beyond the upper limit nothing is measured: the walk begins at the limit.
        limit = maximum(self.schedule.fewest, self.schedule.most)
        wanted = where(size > limit, limit * 1.0, wanted)
        return self._compared(_chosen(failing.failed & ~climbs, failing, _chosen(climbs, at.there, at.largest)), wanted)

    def _situation(self) -> _Situation:
        measured, size = self.measured, Source("size")
        known, sizes = measured.known, measured.sizes
        ahead = known & (sizes > size) & (sizes <= self.schedule.most) & (sizes != Source("refused_size"))
        below, above = measured.last(known & (sizes < size)), measured.first(ahead)
        top = measured.last(ahead & (sizes <= maximum(2 * size, above)))
        reach = (1 + self.look_ahead) * self.schedule.unit
        return _Situation(size, below, above, top, *(measured.verdict(one, reach=reach) for one in (size, above, top)))

    def _after_failure(self, at: _Situation, best: BestSize, climbs: Signal) -> Signal:
        """The next size if a size failed: the best size, a size on the way to it, or one below all measured sizes."""
        known, sizes, failing = self.measured.known, self.measured.sizes, at.failing
        low = minimum(best.size, at.size)
        high = self.measured.first(known & (sizes > low) & (sizes <= failing.size))
        up = where(at.size == self.measured.first(known), best.size, self._towards(at))
        back = where(climbs, up, self.schedule.between(low, high))
        # The smallest size was never judged: without a gain over it, or with one that is not shown over a narrow range,
        # a smaller size may be best.
        bottom, shrunk = self._shrunk()
        is_unjudged = ~best.gains | (~best.is_shown & (2 * bottom > failing.size))
        back = where((best.base == bottom) & is_unjudged & (shrunk < bottom), shrunk, back)
        if not self.look_ahead:
            return back
        grown, can_grow = self._grown(at)
        is_near = grown - best.size <= (1 + self.look_ahead) * self.schedule.unit
        return where(at.here.failed & can_grow & ~known[grown] & is_near, grown, back)

    def _without_failure(self, at: _Situation) -> Signal:
        """The next size if no size failed: growth from the largest measured size, or the way back to that size.

        If the job cannot grow and the comparisons are open, a smaller size is needed: over twice the distance, an error
        counts half as much.
        """
        grown, can_grow = self._grown(at)
        bottom, shrunk = self._shrunk()
        largest, is_limit = at.largest, at.is_top | (at.top + self.schedule.unit > self.schedule.most)
        is_open = (at.size == bottom) & ~largest.passed & (2 * bottom > largest.size) & is_limit
        second = self.measured.last(self.measured.known & (self.measured.sizes < at.top))
        back = where(at.top - second > self.schedule.unit, self._towards(at), at.top)
        stays = where(is_open & (shrunk < bottom), shrunk, where(at.is_top, at.size, back))
        return where(at.is_top & can_grow, grown, stays)

    def _towards(self, at: _Situation) -> Signal:
        """The next larger measured size, or a size between that and the present size."""
        middle = self.schedule.between(at.size, at.above)
        return where(middle > at.size, middle, at.above)

    def _grown(self, at: _Situation) -> tuple[Signal, Signal]:
        """The size to try above the present size, and a truth value: true if the job can have that size."""
        grown = self.schedule.above(at.size, at.below)
        return grown, (grown > at.size) & (grown != Source("refused_size"))

    def _shrunk(self) -> tuple[Signal, Signal]:
        """The smallest measured size, and the size to try below it."""
        known, sizes = self.measured.known, self.measured.sizes
        bottom = self.measured.first(known)
        return bottom, self.schedule.below(bottom, self.measured.first(known & (sizes > bottom)))

    def _compared(self, judged: Verdict, wanted: Signal) -> Walk:
        """The walk to the wanted size, with the comparison that gives a verdict."""
        is_compared = judged.base > 0
        fewer = self.measured.at(where(is_compared, judged.base, Source("size")))
        more = self.measured.at(where(is_compared, judged.size, 0))
        gain, error, _ = self.measured.gain(fewer, more)
        more = SizeEstimate(where(is_compared, more.peers, math.nan), more.mean, more.standard_error)
        return Walk(wanted, fewer, more, gain, error)


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
    growth: Growth = "linear",
    look_ahead: int = 0,
) -> Walk:
    """A walk from size to size by `hill_climb`, decided every `every` steps, and ended and resumed by `settle`.

    With n the larger of `every` and 10, a size needs at least n samples, and 3 n if its comparison is open. The walk
    ends only 6 n steps after the last change of size. Results are float32 scalars, equal on all peers if the table is.
    All other arguments are those of `hill_climb`.

    Args:
        every: Steps between two decisions, at least 1; a size needs at least 10 samples in any case.
        view_steps: Steps since the size last changed: int64.
        moved: As for `settle`.

    Raises:
        PolicyError: A number is out of range.

    Cost:
        The cost of `settle`, plus the cost of the table.

    On rescale:
        The state is kept, as in `settle`.
    """
    samples = max(every, _LEAST_SAMPLES)
    walk = _walk(
        MeasuredSizes(advantage, table, samples), unit=unit, growth=growth, min_peers=min_peers, max_peers=max_peers,
        look_ahead=look_ahead, max_samples=3 * samples,
    )  # fmt: skip
    return replace(walk, size=settle(walk.size, every=every, ready=view_steps >= 6 * samples, moved=moved))


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
