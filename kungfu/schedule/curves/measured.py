"""Tables of measured throughput: one CSV file a model, one row a batch size, one column a GPU count."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kungfu.errors import UsageError
from kungfu.schedule.curves.curve import Curve

__all__ = ["Measured", "read_throughputs"]


@dataclass(frozen=True)
class Measured:
    """Curves of several models: ``families[model][batch]`` is a ``Curve`` in iterations a second.

    Raises:
        UsageError: from ``curve``, for a model or a batch that nobody measured.
    """

    families: Mapping[str, Mapping[int, Curve]]

    def family(self, model: str) -> Mapping[int, Curve]:
        """All curves of one model, by total batch size."""
        if model not in self.families:
            raise UsageError(f"no throughput of model {model!r} is known; there are {sorted(self.families)}")
        return self.families[model]

    def curve(self, model: str, *, batch: int) -> Curve:
        """The strong-scaling curve of ``model`` at a total batch of ``batch`` samples."""
        family = self.family(model)
        if batch not in family:
            raise UsageError(f"no throughput of {model!r} at batch {batch} is known; there are {sorted(family)}")
        return family[batch]


def read_throughputs(folder: str | Path) -> Measured:
    """Every ``MODEL.csv`` in ``folder``, header ``global_batch_size,1,2,4,...``, cells in iterations a second.

    An empty cell at either end of a row was not measured; one between two numbers is a hole, and an error.

    Raises:
        UsageError: for a folder without tables, a hole, a zero, or a cell that is no number: file, line and column.
    """
    folder = Path(folder)
    try:
        tables = sorted(folder.glob("*.csv")) if folder.is_dir() else []
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; give a folder with files like resnet50.csv") from error
    if not tables:
        raise UsageError(f"{folder} holds no throughput tables: give a folder with files like resnet50.csv")
    return Measured({table.stem: _read_table(table) for table in tables})


def _read_table(path: Path) -> dict[int, Curve]:
    rows = _rows(path)
    if len(rows) < 2 or rows[0][1][0] != "global_batch_size":
        raise UsageError(f"{path}:1: expected a header global_batch_size,1,2,4,... and at least one row under it")
    counts = [_whole(cell, where=f"{path}:{rows[0][0]}") for cell in rows[0][1][1:]]
    family: dict[int, Curve] = {}
    for line, row in rows[1:]:
        where = f"{path}:{line}"
        batch = _whole(row[0], where=f"{where}: column global_batch_size")
        if batch in family:
            raise UsageError(f"{where}: expected a new batch, got {batch} again: leave one of the two rows")
        family[batch] = _row_curve(row[1:], counts=counts, where=where)
    return family


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """The lines that hold anything, with their numbers."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            return [(line, cells) for line, cells in enumerate(csv.reader(lines, strict=True), start=1) if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: expected a readable CSV file in UTF-8: {error}") from error


def _row_curve(cells: list[str], *, counts: list[int], where: str) -> Curve:
    filled = [index for index, cell in enumerate(cells) if cell.strip()]
    if not filled or len(cells) > len(counts):
        raise UsageError(f"{where}: expected 1 to {len(counts)} rates, got {len(filled)}")
    for index in range(filled[0], filled[-1] + 1):
        if index not in filled:
            raise UsageError(f"{where}: column {counts[index]}: a hole between two measured rates; measure it")
    rates = tuple(_number(cells[index], where=f"{where}: column {counts[index]}") for index in filled)
    try:
        return Curve(tuple(counts[index] for index in filled), rates)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _whole(cell: str, *, where: str) -> int:
    value = _number(cell, where=where)
    if not 1 <= value < 1e9 or value != int(value):
        raise UsageError(f"{where}: expected a whole number of at least 1, got {cell!r}")
    return int(value)


def _number(cell: str, *, where: str) -> float:
    try:
        return float(cell)
    except ValueError as error:
        raise UsageError(f"{where}: expected a number, got {cell!r}") from error
