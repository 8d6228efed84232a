"""The figures of a run in bounded memory: groups of steps, with medians and extremes.

Consecutive steps form a group. A group begins as one step. Whenever the limit of groups is reached, neighbouring groups
are merged, so the number of groups of a long run lies between half the limit and the limit.

A group keeps up to `_SAMPLE` values of each figure: all values, as long as the group has at most `_SAMPLE` steps. When
a group has twice as many values, they are sorted and every second value is kept, so that the median of the kept values
stays within a few percent, by rank, of the median of all values. A group also keeps the lowest and the highest value,
and the number of steps with a non-finite figure. If these steps are the majority, the median is NaN.

Reference: Munro and Paterson, 1980: Selection and sorting with limited storage.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kungfu.event_log.values import undefined_words

Figures = Mapping[str, float]
Series = NDArray[np.float64]

_SAMPLE = 16


# A figure within a group: the lowest value, the median, the highest value, and the share of non-finite steps.
Spread = tuple[float, float, float, float]


@dataclass(frozen=True)
class DrawnCurve:
    """A figure at each group of steps, NaN if unknown; a group may be a single step.

    Attributes:
        low: The lowest values of the steps of each group.
        values: The medians; also NaN if the figure is non-finite in most steps of a group.
        high: The highest values.
        undefined: The share of non-finite steps among the steps of each group that have the figure.
        note: A note on the non-finite steps of the run; empty if there are hardly any.
    """

    low: Series
    values: Series
    high: Series
    undefined: Series
    note: str = ""


class _Seen(NamedTuple):
    """The extremes of a figure, and the numbers of steps with finite and with non-finite values."""

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
        return low, math.nan if self.missing > self.known else median, high, share


_NOTHING = _Seen()


def _seen(given: Sequence[float]) -> tuple[list[float], _Seen]:
    """The finite values in ``given``, and a summary: their extremes, and the counts of finite and of other values."""
    known = _known(given)
    extremes = min(known, default=math.inf), max(known, default=-math.inf)
    return known, _Seen(*extremes, len(known), len(given) - len(known))


@dataclass
class _Figure:
    """One figure of a run: values that represent each closed group, and the kept values of the last group.

    Attributes:
        rows: The same number of values for each closed group; NaN in place of values that are missing.
        counted: The extremes and counts of each closed group.
        folded: The kept values of the last group by level; each value at index n represents 2 ** n steps.
        seen: The extremes and counts of all values of the last group, except the newest steps.
    """

    rows: array[float]
    counted: list[_Seen]
    folded: list[list[float]] = field(default_factory=list)
    seen: _Seen = _NOTHING
    turn: int = 0

    def halved(self, values: Sequence[float]) -> Sequence[float]:
        """Every second value in ascending order; calls alternately begin with the second and the first value."""
        self.turn ^= 1
        rising = sorted(values)
        return rising[self.turn :: 2] or rising

    def put(self, level: int, values: Sequence[float]) -> None:
        """Adds values to the last group; each value represents 2 ** `level` steps."""
        while len(self.folded) <= level:
            self.folded.append([])
        self.folded[level].extend(values)

    def carry(self, level: int) -> None:
        """Moves every second value of a level to the next level, with twice as many steps per value; drops the rest."""
        self.put(level + 1, self.halved(self.folded[level]))
        self.folded[level].clear()

    def close(self, level: int, wide: int) -> None:
        """Closes the last group; each of its values represents 2 ** `level` steps."""
        self.rows.extend(_padded(self.folded[level] if level < len(self.folded) else (), wide))
        self.counted.append(self.seen)
        self.drop_last()

    def drop_last(self) -> None:
        self.folded, self.seen = [], _NOTHING

    def drop_whole(self, wide: int) -> None:
        """Removes the newest closed group."""
        del self.rows[-wide:], self.counted[-1]

    def join(self, wide: int, *, halve: bool) -> None:
        """Merges the closed groups in pairs."""
        if halve:
            pairs = (self.rows[at : at + 2 * wide] for at in range(0, len(self.rows), 2 * wide))
            kept = (_padded(self.halved(_known(pair)), wide) for pair in pairs)
            self.rows = array("d", chain.from_iterable(kept))
        self.counted = [*map(_Seen.joined, self.counted[::2], self.counted[1::2])]

    def whole(self, since: int, wide: int) -> Iterator[Spread]:
        """Yields the median and the extremes of each closed group, from group `since` on."""
        for group, seen in enumerate(self.counted[since:], start=since):
            yield seen.spread(_median(_known(self.rows[group * wide : (group + 1) * wide])))

    def last(self, newest: Sequence[float]) -> Spread:
        """The median, extremes and non-finite share of the last group, including the unmerged values ``newest``."""
        known, seen = _seen(newest)
        weighted = [(value, 1 << level) for level, values in enumerate(self.folded) for value in values]
        middle = _weighted_median([*weighted, *((value, 1) for value in known)]) if weighted else _median(known)
        return self.seen.joined(seen).spread(middle)


class StepGroups:
    """Groups the steps of a run, which are added one after the other.

    A repeated step removes its earlier version and all later steps. But figures that were already merged with figures
    of earlier steps remain.

    Args:
        most: The limit of groups, an even number; up to this number of steps, each step is a group.

    >>> groups = StepGroups(2)
    >>> for step, loss in enumerate([9.0, 4.25, 5.0, 1.0, 2.0], start=1):
    ...     groups.add(step, {"loss": loss})
    >>> [*map(int, groups.lasts())], groups.curve("loss").values.tolist()
    ([4, 5], [4.625, 2.0])
    """

    def __init__(self, most: int) -> None:
        assert most % 2 == 0, most
        self._most = most
        # Each closed group has `_wide` values, each of which represents 2 ** `_level` steps.
        self._wide, self._level = 1, 0
        self._firsts, self._lasts = array("d"), array("d")
        self._figures: dict[str, _Figure] = {}
        self._known = set[str]()
        # The last group: the span and the number of its folded blocks, and its newest steps one by one.
        self._folded, self._blocks = (math.inf, -math.inf), 0
        self._newest: list[tuple[float, Figures]] = []
        self._changed = 0

    def add(self, step: float, figures: Figures) -> None:
        """Adds a step with its figures; NaNs before the first other value of a figure do not count as non-finite."""
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
        """The index of the first group that is new or changed since the last call; if none is, the number of groups."""
        changed, self._changed = self._changed, len(self)
        return changed

    def firsts(self, since: int = 0) -> Iterator[float]:
        """The first step of each group, from group `since` on."""
        yield from self._firsts[since:]
        if self._has_last:
            yield self._first_of_last

    def lasts(self, since: int = 0) -> Iterator[float]:
        """The last step of each group, from group `since` on."""
        yield from self._lasts[since:]
        if self._has_last:
            yield self._last_step

    def curve(self, name: str, since: int = 0) -> DrawnCurve:
        """A figure as a curve over the groups, from group `since` on."""
        figure = self._figures.get(name) or self._unknown()
        spreads = [*figure.whole(since, self._wide)]
        if self._has_last:
            spreads.append(figure.last(self._newest_of(name)))
        low, values, high, undefined = np.array(spreads).reshape(-1, 4).T
        return DrawnCurve(low, values, high, undefined, undefined_words(self.undefined(name)))

    def undefined(self, name: str) -> float:
        """The share of steps with a non-finite value of a figure, ignoring NaNs before the first other value."""
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
        """Merges (folds) the newest steps into the last group, and closes the group if it is full."""
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
        """Merges blocks as a binary counter carries: two blocks of a level become one block of the next level."""
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
        """Removes a step and all later steps."""
        del self._newest[bisect_left(self._newest, step, key=lambda one: one[0]) :]
        # Either all folded steps are removed, or only the newest folded steps; the figures of the latter remain.
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


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]  # NaN differs from itself


def _padded(values: Sequence[float], wide: int) -> list[float]:
    return [*values, *[math.nan] * (wide - len(values))]


def _median(values: Sequence[float]) -> float:
    """The median of values; one of the values if they are whole numbers, such as sizes. NaN without values."""
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
