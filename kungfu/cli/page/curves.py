"""The curves of a run in bounded memory, however long it trains, without losing an extreme of any of them.

Steps that follow each other form a group, which is drawn as at most two points: at its first and at its last step, with
the smallest and the largest value of each curve in the order in which they came. A group begins as one step. Whenever
there are more than `MOST_GROUPS` of them, neighbours become one, so that a run of any length has at most
``2 * MOST_GROUPS`` points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kungfu.event_log.numbers import as_float

__all__ = ["MOST_CURVES", "MOST_GROUPS", "Curves"]

MOST_GROUPS = 1024
MOST_CURVES = 40
_NO_CURVES = ("time", "step", "straggler_fractions")
_LARGEST_STEP = 1 << 53  # beyond it a browser's numbers are not exact

Pair = tuple[float, float]


@dataclass
class _Group:
    """Consecutive steps; ``values`` are the extremes of each curve, in the order in which they came."""

    first: int
    last: int
    times: Pair
    count: int = 1
    values: dict[str, Pair] = field(default_factory=dict)

    def take(self, later: _Group) -> None:
        """Adds the steps that follow."""
        self.last, self.count = later.last, self.count + later.count
        self.times = self.times[0], later.times[1]
        for name, (one, other) in later.values.items():
            self.values[name] = _with(_with(self.values.get(name), one), other)

    def points(self) -> range:
        """The places of its points: one for a single step, else two."""
        return range(1 if self.first == self.last else 2)


def _with(pair: Pair | None, value: float) -> Pair:
    """The extremes of a curve once one more value came."""
    if pair is None:
        return value, value
    low, high = pair if pair[0] <= pair[1] else (pair[1], pair[0])
    if value > high:
        return low, value
    return (high, value) if value < low else pair


class Curves:
    """Takes the lines of ``metrics.jsonl``, and gives the points to draw.

    Attributes:
        left_out: Names of numbers for which there is no room: nobody reads a page with more curves.
    """

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._names: dict[str, None] = {}
        self._per_group, self._changed_from = 1, 0
        self.left_out: set[str] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a step. One that was done before is done again: what came of it and of those after it is undone."""
        step = row.get("step")
        # A line that a damaged disk has left without what every line has.
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < _LARGEST_STEP:
            return
        self._undo(step)
        before = self._groups[-1].times[1] if self._groups else -math.inf
        time = max(before, _finite(row.get("time")) or 0.0)  # clocks are set
        step_group = _Group(step, step, (time, time))
        for name, value in row.items():
            number = None if name in _NO_CURVES else _finite(value)
            if number is not None and (name in self._names or self._has_room(name)):
                step_group.values[name] = (number, number)
        self._append(step_group)

    def taken(self) -> dict[str, Any] | None:
        """The points that changed since the last call, as the points from a place on; ``None`` where none did."""
        if self._changed_from >= len(self._groups):
            return None
        changed, self._changed_from = self._changed_from, len(self._groups)
        return self._from(changed)

    def all(self) -> dict[str, Any]:
        """All points."""
        return self._from(0)

    def _from(self, group: int) -> dict[str, Any]:
        """The points from a group on, with the digits that a picture can show; ``None`` where a curve is not known."""
        shown = self._groups[group:]
        return {
            "from": sum(len(one.points()) for one in self._groups[:group]),
            "steps": [(one.first, one.last)[at] for one in shown for at in one.points()],
            "times": [round(one.times[at], 3) for one in shown for at in one.points()],
            "curves": [{"name": name, "values": [*_values(shown, name)]} for name in self._names],
        }

    def _undo(self, step: int) -> None:
        while self._groups and self._groups[-1].first >= step:
            self._groups.pop()
        if self._groups and self._groups[-1].last >= step:
            self._groups[-1].last = step - 1
            self._changed_from = min(self._changed_from, len(self._groups) - 1)
        self._changed_from = min(self._changed_from, len(self._groups))

    def _append(self, step: _Group) -> None:
        # The last group still has room.
        if self._groups and self._groups[-1].count < self._per_group:
            self._groups[-1].take(step)
            self._changed_from = min(self._changed_from, len(self._groups) - 1)
            return
        self._groups.append(step)
        if len(self._groups) > MOST_GROUPS:
            self._join_neighbours()

    def _join_neighbours(self) -> None:
        joined = self._groups[::2]
        for one, later in zip(joined, self._groups[1::2], strict=False):
            one.take(later)
        self._groups, self._per_group, self._changed_from = joined, 2 * self._per_group, 0

    def _has_room(self, name: str) -> bool:
        if len(self._names) < MOST_CURVES:
            self._names[name] = None
            return True
        if len(self.left_out) < MOST_CURVES:
            self.left_out.add(name)
        return False


def _values(groups: list[_Group], name: str) -> Iterator[float | None]:
    for one in groups:
        pair = one.values.get(name)
        for at in one.points():
            # A single step, and what is left of a group whose other steps are done again, has its newest value.
            yield None if pair is None else float(f"{pair[at if len(one.points()) > 1 else 1]:.7g}")


def _finite(value: Any) -> float | None:
    """A number; ``None`` for anything else, NaN and infinities among it."""
    # Nearly always: a record of a week has tens of millions of steps.
    if type(value) is float:
        return value if math.isfinite(value) else None
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None
