"""The curves of a run as its page draws them: of each group of steps a median, and the extremes beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kungfu.cli.report.step_groups import StepGroups, WholeBatches
from kungfu.event_log.numbers import as_whole
from kungfu.event_log.values import finite_number, number_or_nan

MOST_GROUPS = 1024
MOST_CURVES = 40
_LARGEST_STEP = 1 << 53  # beyond it a browser's numbers are not exact


class Curves:
    """Takes the lines of ``metrics.jsonl``, and gives the points to draw.

    Attributes:
        newest: The newest step in which each curve is known, with its value there.
        left_out: Names of numbers for which there is no room: nobody reads a page with more curves.
    """

    def __init__(self) -> None:
        self._groups, self._batches = StepGroups(MOST_GROUPS), WholeBatches()
        self._names: dict[str, None] = {}
        self._step, self._time = -1, -math.inf
        self.newest: dict[str, tuple[int, float]] = {}
        self.left_out: set[str] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a step. One that was done before is done again: what came of it and of those after it is undone."""
        step = as_whole(row.get("step"))
        # A line that a damaged disk has left without what every line has.
        if step is None or not 0 <= step < _LARGEST_STEP:
            return
        # What came of a step that is done again is known once it is done.
        if step <= self._step:
            self.newest = {name: known for name, known in self.newest.items() if known[0] < step}
        self._step = step
        self._time = max(self._time, finite_number(row.get("time")) or 0.0)  # clocks are set
        figures, batch = {"time": self._time}, self._batches.batch(row)
        for name, value in row.items():
            number = None if name in ("time", "step") else batch if name == "batch" else number_or_nan(value)
            if number is None or (math.isnan(number) and name not in self._names):
                continue
            if name in self._names or self._has_room(name):
                figures[name] = number
                if not math.isnan(number):
                    self.newest[name] = step, number
        self._groups.add(step, figures)

    def taken(self) -> dict[str, Any] | None:
        """The points that changed since the last call, as the points from a place on; ``None`` where none did."""
        changed = self._groups.changed()
        return self._from(changed) if changed < len(self._groups) else None

    def all(self) -> dict[str, Any]:
        """All points."""
        return self._from(0)

    def _from(self, group: int) -> dict[str, Any]:
        """The points from a group on, one for each at its last step; ``None`` where a curve is not known."""
        return {
            "from": group,
            "firsts": [*map(int, self._groups.firsts(group))],
            "steps": [*map(int, self._groups.lasts(group))],
            "times": [round(spread.high, 3) for spread in self._groups.spreads("time", group)],
            "curves": [self._curve(name, group) for name in self._names],
        }

    def _curve(self, name: str, group: int) -> dict[str, Any]:
        curve = self._groups.curve(name, group)
        shown = {key: [*map(_shown, getattr(curve, key).tolist())] for key in ("low", "values", "high")}
        return {"name": name, **shown, "newest": self.newest.get(name), "note": curve.note}

    def _has_room(self, name: str) -> bool:
        if len(self._names) < MOST_CURVES:
            self._names[name] = None
            return True
        if len(self.left_out) < MOST_CURVES:
            self.left_out.add(name)
        return False


def _shown(value: float) -> float | None:
    """A number with the digits that a picture can show; ``None`` for one that is not known."""
    return None if math.isnan(value) else float(f"{value:.7g}")
