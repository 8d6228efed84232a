"""The curves of a run as points for the page: a median with extremes for each group of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kungfu.cli.report.step_groups import StepGroups
from kungfu.event_log.numbers import as_whole
from kungfu.event_log.progress import WholeBatches
from kungfu.event_log.values import finite_number, number_or_nan

MOST_GROUPS = 1024
MOST_CURVES = 40
_LARGEST_STEP = 1 << 53  # larger integers are not exact in a browser


class Curves:
    """The points to draw, from the lines of ``metrics.jsonl``.

    Attributes:
        groups: The figures of the steps, in groups.
        newest: For each curve, the newest step with a known value, and that value.
        left_out: The names of figures beyond the limit of curves, since more curves would be unreadable.
    """

    def __init__(self, most_groups: int = MOST_GROUPS, *, most_curves: float = MOST_CURVES) -> None:
        self.groups, self._batches = StepGroups(most_groups), WholeBatches()
        self._names, self._most = dict[str, None](), most_curves
        self._step, self._time = -1, -math.inf
        self.newest: dict[str, tuple[int, float]] = {}
        self.left_out: set[str] = set()

    def add(self, row: Mapping[str, Any]) -> bool:
        """Adds a step; False if the row has no step. A repeated step undoes its earlier version and all later steps."""
        step = as_whole(row.get("step"))
        # The line lacks required fields, for example because the disk is damaged.
        if step is None or not 0 <= step < _LARGEST_STEP:
            return False
        # The outcome of a repeated step is known once the step has been done again.
        if step <= self._step:
            self.newest = {name: known for name, known in self.newest.items() if known[0] < step}
        self._step = step
        self._time = max(self._time, finite_number(row.get("time")) or 0.0)  # clocks may be set back
        figures, self._batches = {"time": self._time}, self._batches.after(row)
        for name, value in row.items():
            is_left_out = name == "batch" and (self._batches.is_left_out or finite_number(value) is None)
            number = None if is_left_out or name in ("time", "step") else number_or_nan(value)
            if number is None or (math.isnan(number) and name not in self._names):
                continue
            if name in self._names or self._has_room(name):
                figures[name] = number
                if not math.isnan(number):
                    self.newest[name] = step, number
        self.groups.add(step, figures)
        return True

    def changed(self) -> dict[str, Any] | None:
        """All points from the first one that has changed since the last call; ``None`` if none has changed."""
        changed = self.groups.changed()
        return self._from(changed) if changed < len(self.groups) else None

    def all(self) -> dict[str, Any]:
        """All points."""
        return self._from(0)

    def _from(self, group: int) -> dict[str, Any]:
        """The points of the groups from `group` on, each at the last step of its group; unknown values are ``None``."""
        return {
            "from": group,
            "firsts": [*map(int, self.groups.firsts(group))],
            "steps": [*map(int, self.groups.lasts(group))],
            "times": [round(time, 3) for time in self.groups.curve("time", group).high.tolist()],
            "curves": [self._curve(name, group) for name in self._names],
        }

    def _curve(self, name: str, group: int) -> dict[str, Any]:
        curve = self.groups.curve(name, group)
        shown = {key: [*map(_shown, getattr(curve, key).tolist())] for key in ("low", "values", "high")}
        return {"name": name, **shown, "newest": self.newest.get(name), "note": curve.note}

    def _has_room(self, name: str) -> bool:
        if len(self._names) < self._most:
            self._names[name] = None
            return True
        if len(self.left_out) < MOST_CURVES:
            self.left_out.add(name)
        return False


def _shown(value: float) -> float | None:
    """A number rounded to the digits that a picture can show; ``None`` if unknown."""
    return None if math.isnan(value) else float(f"{value:.7g}")
