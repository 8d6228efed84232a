"""The curves of a run as a picture shows them: a point for each step, or of a long run two for each group of steps.

The groups are consecutive steps, as many as leave some thousand groups. The points of one stand at its first and at its
last step, and have the lowest and the highest value of each figure, in the order in which these came, so that no
extreme is lost. The typical value of both is the median of the group. So a picture of a week takes the memory of one of
an hour.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kungfu.cli.report import read_rows, rows_in_order
from kungfu.cli.report.metrics import Row, grouped, steps_per_group
from kungfu.cli.report.values import finite_number, not_finite
from kungfu.event_log.numbers import as_float

__all__ = ["FRACTIONS", "CurvesOfRun", "Series", "curves_of", "read_curves"]

Series = NDArray[np.float64]
Figures = Mapping[str, float]

# A figure that has a value for each peer.
FRACTIONS = "straggler_fractions"
# A picture is some 1,000 pixels wide.
_EXACT_STEPS, _GROUPS = 20_000, 4_000


@dataclass(frozen=True)
class CurvesOfRun:
    """The figures of a run, as arrays with one entry for each point.

    Attributes:
        steps: The steps of the points, rising.
        values: The figures by name, NaN where one is not known.
        typical: The typical values around the points, by name; the values themselves where each step is a point.
        fractions: The speed of each peer as a fraction of the median's, by its id.
        names: Those of the numbers, of the learning rate and of `FRACTIONS`, in the order of the record.
        lost: The steps whose loss is no number, each with what it is; of a group the first one.
    """

    steps: Series
    values: Mapping[str, Series]
    typical: Mapping[str, Series]
    fractions: Mapping[str, Series]
    names: tuple[str, ...]
    lost: tuple[tuple[float, str], ...]


def read_curves(folder: Path) -> CurvesOfRun:
    """The curves of a recorded run.

    Raises:
        UsageError: There is no record of its steps.
    """
    per_group = steps_per_group(folder, exact=_EXACT_STEPS, groups=_GROUPS)
    return curves_of(read_rows(folder), per_group=per_group)


def curves_of(rows: Iterable[Row], *, per_group: int = 1) -> CurvesOfRun:
    """The curves of these lines, with so many steps in a group; of a step that was done again, the last line counts."""
    steps, lost, names = array("d"), list[tuple[float, str]](), dict[str, None]()
    values, typical, fractions = _Columns(), _Columns(), _Columns()
    for group in grouped(rows_in_order(rows), per_group):
        told = [row for _, row in group]
        figures = [_figures(row) for row in told]
        names.update(
            (name, None) for row in told for name in row if name not in names and _is_drawable(name, row[name])
        )
        steps.extend(dict.fromkeys((group[0][0], group[-1][0])))
        values.extend(_points(figures))
        fractions.extend(_points([_of_peers(row) for row in told]))
        lost += [(step, what) for step, row in group if (what := not_finite(row.get("loss")))][:1]
        if per_group > 1:
            typical.extend([_medians(figures)] * min(2, len(group)))
    drawn = values.arrays()
    return CurvesOfRun(
        np.array(steps), drawn, typical.arrays() if per_group > 1 else drawn, fractions.arrays(), (*names,), (*lost,)
    )


class _Columns:
    """Columns of one length; an entry that nobody gave is NaN."""

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._length = 0

    def extend(self, rows: Iterable[Figures]) -> None:
        for row in rows:
            self._length += 1
            for name, value in row.items():
                self._filled(name, self._length - 1).append(value)

    def arrays(self) -> dict[str, Series]:
        return {name: np.array(self._filled(name, self._length)) for name in self._columns}

    def _filled(self, name: str, length: int) -> array[float]:
        column = self._columns.setdefault(name, array("d"))
        if len(column) < length:
            column.extend([math.nan] * (length - len(column)))
        return column


def _is_drawable(name: str, value: object) -> bool:
    if name == FRACTIONS:
        return isinstance(value, Mapping)
    return name == "learning_rate" or as_float(value) is not None


def _figures(row: Row) -> Figures:
    """The numbers of a step; those that are not finite are NaN."""
    numbers = {name: as_float(value) for name, value in row.items()}
    return {name: _finite(number) for name, number in numbers.items() if number is not None}


def _of_peers(row: Row) -> Figures:
    told = row.get(FRACTIONS)
    if not isinstance(told, Mapping):
        return {}
    return {peer: math.nan if (known := finite_number(speed)) is None else known for peer, speed in told.items()}


def _finite(number: float) -> float:
    return number if math.isfinite(number) else math.nan


def _points(group: Sequence[Figures]) -> Sequence[Figures]:
    """A step as it is; of more, the lowest and the highest value of each figure, in the order in which they came."""
    if len(group) == 1:
        return group
    first, last = dict[str, float](), dict[str, float]()
    for name, values in _known(group):
        low, high = (values.index(one(values)) for one in (min, max)) if values else (0, 0)
        first[name], last[name] = (values[at] if values else math.nan for at in sorted((low, high)))
    return first, last


def _medians(group: Sequence[Figures]) -> Figures:
    return {name: statistics.median(values) if values else math.nan for name, values in _known(group)}


def _known(group: Sequence[Figures]) -> Iterator[tuple[str, list[float]]]:
    """The known values of each figure that a group has."""
    for name in dict.fromkeys(name for one in group for name in one):
        values = (one.get(name, math.nan) for one in group)
        yield name, [value for value in values if not math.isnan(value)]
