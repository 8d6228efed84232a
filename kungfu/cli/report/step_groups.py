"""The figures of a run in bounded memory, however long it trains: groups of steps, with medians beside their extremes.

Steps that follow each other form a group. A group begins as one step; whenever there are as many groups as are wanted,
neighbours become one, so that of a long run there are between half as many and as many.

A group keeps up to `_SAMPLE` values of each figure: all, as long as it has no more steps. Of twice as many every second
one stays, in the order of their size, so that their median stays near that of all, within some percent by rank. The
lowest and the highest value are kept beside them, and how often the figure was no number: where it was none in most
steps of a group, no median stands for it.

Reference: Munro and Paterson, 1980: Selection and sorting with limited storage.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kungfu.event_log.values import finite_number, undefined_words

Figures = Mapping[str, float]
Series = NDArray[np.float64]

_SAMPLE = 16


class Spread(NamedTuple):
    """A figure within a group; NaN if none is known.

    Attributes:
        low: Its lowest value.
        median: Its median; NaN also where it is no number in most steps.
        high: Its highest value.
        undefined: The share of the steps, of those that have it, in which it is no number.
    """

    low: float
    median: float
    high: float
    undefined: float = 0.0


@dataclass(frozen=True)
class DrawnCurve:
    """A figure at each point, NaN if it is not known: its median, which is its value where each step is a point.

    Attributes:
        low: The lowest values of the steps of each point.
        values: The medians; NaN also where it is no number in most steps of a point.
        high: The highest values.
        undefined: The share of the steps of each point in which it is no number.
        note: A note on the steps of the run in which it is no number; empty if there are hardly any.
    """

    low: Series
    values: Series
    high: Series
    undefined: Series
    note: str = ""


class _Seen(NamedTuple):
    """The counts of a figure: its extremes, and the steps in which it is a number or not."""

    low: float = math.inf
    high: float = -math.inf
    known: float = 0
    missing: float = 0

    def joined(self, other: _Seen) -> _Seen:
        low, high = min(self.low, other.low), max(self.high, other.high)
        return _Seen(low, high, self.known + other.known, self.missing + other.missing)

    def spread(self, median: float) -> Spread:
        share = self.missing / (self.known + self.missing) if self.missing else 0.0
        low, high = (self.low, self.high) if self.known else (math.nan, math.nan)
        return Spread(low, math.nan if self.missing > self.known else median, high, share)


_NOTHING = _Seen()


def _seen(given: Sequence[float]) -> tuple[list[float], _Seen]:
    """The numbers among these values, and what is counted of all."""
    known = _known(given)
    extremes = min(known, default=math.inf), max(known, default=-math.inf)
    return known, _Seen(*extremes, len(known), len(given) - len(known))


@dataclass
class _Figure:
    """One figure: of each whole group a row of values with its extremes, and what was folded of the last group.

    Attributes:
        rows: The values that stand for whole groups, as many for each; NaN if fewer are known.
        counted: The counts of each whole group.
        folded: The values of the last group: at place n, each stands for 2 ** n steps.
        seen: The counts of the folded values.
    """

    rows: array[float]
    counted: list[_Seen]
    folded: list[list[float]] = field(default_factory=list)
    seen: _Seen = _NOTHING
    turn: int = 0

    def halved(self, values: Sequence[float]) -> Sequence[float]:
        """Every second one of these values in the order of their size, beginning with the first and second in turn."""
        self.turn ^= 1
        rising = sorted(values)
        return rising[self.turn :: 2] or rising

    def put(self, level: int, values: Sequence[float]) -> None:
        """Adds values that each stand for 2 ** `level` steps of the last group."""
        while len(self.folded) <= level:
            self.folded.append([])
        self.folded[level].extend(values)

    def carry(self, level: int) -> None:
        """Has half as many values of a level stand for twice as many steps."""
        self.put(level + 1, self.halved(self.folded[level]))
        self.folded[level].clear()

    def close(self, level: int, wide: int) -> None:
        """The last group is whole; `level` holds all of its values."""
        self.rows.extend(_padded(self.folded[level] if level < len(self.folded) else (), wide))
        self.counted.append(self.seen)
        self.drop_last()

    def drop_last(self) -> None:
        self.folded, self.seen = [], _NOTHING

    def drop_whole(self, wide: int) -> None:
        """The newest whole group counts no more."""
        del self.rows[-wide:], self.counted[-1]

    def join(self, wide: int, *, halve: bool) -> None:
        """Makes one group of each two whole ones."""
        if halve:
            pairs = (self.rows[at : at + 2 * wide] for at in range(0, len(self.rows), 2 * wide))
            kept = (_padded(self.halved(_known(pair)), wide) for pair in pairs)
            self.rows = array("d", chain.from_iterable(kept))
        self.counted = [*map(_Seen.joined, self.counted[::2], self.counted[1::2])]

    def whole(self, since: int, wide: int) -> Iterator[Spread]:
        """The figure within each whole group, from a group on."""
        for group, seen in enumerate(self.counted[since:], start=since):
            yield seen.spread(_median(_known(self.rows[group * wide : (group + 1) * wide])))

    def last(self, newest: Sequence[float]) -> Spread:
        """The figure within the last group, with values that were not folded yet."""
        known, seen = _seen(newest)
        weighted = [(value, 1 << level) for level, values in enumerate(self.folded) for value in values]
        middle = _weighted_median([*weighted, *((value, 1) for value in known)]) if weighted else _median(known)
        return self.seen.joined(seen).spread(middle)


class StepGroups:
    """Takes the steps of a run one after the other, and gives groups of them.

    A step that was done before is done again: what came of it and of those after it is undone, but for the figures of
    those that were joined with earlier ones.

    Args:
        most: Groups that there may be, an even number: as many steps are kept one by one.

    >>> groups = StepGroups(2)
    >>> for step, loss in enumerate([9.0, 4.25, 5.0, 1.0, 2.0], start=1):
    ...     groups.add(step, {"loss": loss})
    >>> [*map(int, groups.lasts())], next(groups.spreads("loss"))
    ([4, 5], Spread(low=1.0, median=4.625, high=9.0, undefined=0.0))
    """

    def __init__(self, most: int) -> None:
        assert most % 2 == 0, most
        self._most = most
        # Each whole group has so many values, each of which stands for 2 ** `_level` steps.
        self._wide, self._level = 1, 0
        self._firsts, self._lasts = array("d"), array("d")
        self._figures: dict[str, _Figure] = {}
        self._known = set[str]()
        # The last group: the span of what is folded, in so many blocks, and the newest steps one by one.
        self._folded, self._blocks = (math.inf, -math.inf), 0
        self._newest: list[tuple[float, Figures]] = []
        self._changed = 0

    def add(self, step: float, figures: Figures) -> None:
        """Adds a step with its figures; one that is NaN is no number there, which counts from its first number on."""
        if step <= self._last_step:
            self._undo(step)
        if len(self._lasts) == self._most:
            self._join()
        self._changed = min(self._changed, len(self._lasts))
        if not figures.keys() <= self._known:
            self._known.update(name for name, value in figures.items() if not math.isnan(value))
            figures = {name: value for name, value in figures.items() if name in self._known}
        self._newest.append((step, figures))
        if len(self._newest) == (2 * _SAMPLE if self._level else self._wide):
            self._fold()

    def __len__(self) -> int:
        return len(self._lasts) + self._has_last

    def changed(self) -> int:
        """The first group that is new or has changed since the last call; all groups where none has."""
        changed, self._changed = self._changed, len(self)
        return changed

    def firsts(self, since: int = 0) -> Iterator[float]:
        """The first step of each group, from a group on."""
        yield from self._firsts[since:]
        if self._has_last:
            yield self._first_of_last

    def lasts(self, since: int = 0) -> Iterator[float]:
        """The last step of each group, from a group on."""
        yield from self._lasts[since:]
        if self._has_last:
            yield self._last_step

    def spreads(self, name: str, since: int = 0) -> Iterator[Spread]:
        """A figure within each group, from a group on."""
        figure = self._figures.get(name) or self._unknown()
        yield from figure.whole(since, self._wide)
        if self._has_last:
            yield figure.last(self._newest_of(name))

    def curve(self, name: str, since: int = 0) -> DrawnCurve:
        """A figure at each group, from a group on."""
        low, values, high, undefined = np.array([*self.spreads(name, since)]).reshape(-1, len(Spread._fields)).T
        return DrawnCurve(low, values, high, undefined, undefined_words(self.undefined(name)))

    def undefined(self, name: str) -> float:
        """The share of the steps since its first number in which a figure is no number."""
        figure = self._figures.get(name) or self._unknown()
        seen = [*figure.counted, figure.seen, _seen(self._newest_of(name))[1]]
        missing = sum(one.missing for one in seen)
        return missing / (missing + sum(one.known for one in seen)) if missing else 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all figures."""
        return (*dict.fromkeys(chain(self._figures, *(figures for _, figures in self._newest))),)

    def _newest_of(self, name: str) -> list[float]:
        return [figures[name] for _, figures in self._newest if name in figures]

    @property
    def _has_last(self) -> bool:
        return bool(self._newest or self._blocks)

    @property
    def _first_of_last(self) -> float:
        return self._folded[0] if self._blocks else self._newest[0][0]

    @property
    def _last_step(self) -> float:
        if self._newest:
            return self._newest[-1][0]
        if self._blocks:
            return self._folded[1]
        return self._lasts[-1] if self._lasts else -math.inf

    def _unknown(self) -> _Figure:
        whole = len(self._lasts)
        return _Figure(array("d", [math.nan]) * (whole * self._wide), [_NOTHING] * whole)

    # ---- the last group becomes whole --------------------------------------------------------------------------------

    def _fold(self) -> None:
        """Folds the newest steps into the last group, which may be whole with them."""
        span = self._first_of_last, self._last_step
        for name in self.names:
            values, seen = _seen(self._newest_of(name))
            figure = self._figures.get(name) or self._figures.setdefault(name, self._unknown())
            figure.seen = figure.seen.joined(seen)
            figure.put(min(self._level, 1), figure.halved(values) if self._level else values)
        self._folded, self._newest = span, []
        self._carry()
        self._blocks += 1
        if self._blocks == max(1, (1 << self._level) >> 1):
            self._close()

    def _carry(self) -> None:
        """Adds a block as a binary counter does: two of a level are one of the next."""
        level = 1
        while self._level and self._blocks >> (level - 1) & 1:
            for figure in self._figures.values():
                figure.carry(level)
            level += 1

    def _close(self) -> None:
        for figure in self._figures.values():
            figure.close(self._level, self._wide)
        self._firsts.append(self._folded[0])
        self._lasts.append(self._folded[1])
        self._blocks = 0

    def _join(self) -> None:
        halve = 2 * self._wide > _SAMPLE
        for figure in self._figures.values():
            figure.join(self._wide, halve=halve)
        self._firsts, self._lasts = self._firsts[::2], self._lasts[1::2]
        if halve:
            self._level += 1
        else:
            self._wide *= 2
        self._changed = 0

    def _undo(self, step: float) -> None:
        """Takes back a step and those after it."""
        del self._newest[bisect_left(self._newest, step, key=lambda one: one[0]) :]
        # All that was folded is undone, or its newest steps are, whose figures stay.
        if not self._newest and self._blocks:
            self._folded = self._folded[0], min(self._folded[1], step - 1)
            if self._folded[0] >= step:
                self._blocks = 0
                for figure in self._figures.values():
                    figure.drop_last()
        if not self._has_last:
            self._undo_whole(step)
        self._changed = min(self._changed, len(self._lasts))

    def _undo_whole(self, step: float) -> None:
        while self._lasts and self._firsts[-1] >= step:
            for figure in self._figures.values():
                figure.drop_whole(self._wide)
            del self._firsts[-1], self._lasts[-1]
        if self._lasts and self._lasts[-1] >= step:
            self._lasts[-1] = step - 1
            self._changed = min(self._changed, len(self._lasts) - 1)


class WholeBatches:
    """Leaves out the smaller last batch of an epoch, which is not the batch that steps have.

    A batch below that of the step before it in the epoch counts from the second step on that has one.

    Examples:
        >>> batches = WholeBatches()
        >>> rows = (0, 8), (0, 5), (1, 8), (1, 4), (1, 4), (2, 3)
        >>> [batches.batch({"epoch": epoch, "batch": batch}) for epoch, batch in rows]
        [8.0, None, 8.0, None, 4.0, 3.0]
    """

    def __init__(self) -> None:
        self._batch, self._epoch = -math.inf, object()
        self._is_left_out = False

    def batch(self, row: Mapping[str, Any]) -> float | None:
        """The batch of a step; ``None`` if it is not known, or is the smaller one of an epoch's end."""
        batch, epoch = finite_number(row.get("batch")), row.get("epoch")
        if batch is None:
            return None
        self._is_left_out = epoch == self._epoch and batch < self._batch and not self._is_left_out
        if self._is_left_out:
            return None
        self._batch, self._epoch = batch, epoch
        return batch


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]  # NaN is unlike itself


def _padded(values: Sequence[float], wide: int) -> list[float]:
    return [*values, *[math.nan] * (wide - len(values))]


def _median(values: Sequence[float]) -> float:
    """The median of values; of whole numbers, as sizes are, one that occurs. NaN of none."""
    if not values:
        return math.nan
    rising = sorted(values)
    low, high = rising[(len(rising) - 1) // 2], rising[len(rising) // 2]
    return high if low == high or (low.is_integer() and high.is_integer()) else (low + high) / 2


def _weighted_median(weighted: list[tuple[float, int]]) -> float:
    half, passed = sum(weight for _, weight in weighted) / 2, 0
    for value, weight in sorted(weighted):
        passed += weight
        if passed >= half:
            return value
    return math.nan
