"""Reading a trace into jobs: every cell checked, every fault named by file, line and column."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

from kungfu.errors import UsageError
from kungfu.schedule.curves import LINEAR, Curve, Measured, hybrid_curve
from kungfu.schedule.job import Job
from kungfu.schedule.traces.cells import instant_s, positive_s, whole, word
from kungfu.schedule.traces.columns import Columns, detected
from kungfu.schedule.traces.rows import Row, read_rows

__all__ = ["Scaling", "read_trace"]

Scaling = Literal["strong", "hybrid"]
_CurveOf = Callable[[str, int, int], Curve]


def read_trace(
    path: str | Path,
    *,
    columns: Columns | None = None,
    measured: Measured | None = None,
    scaling: Scaling = "strong",
) -> tuple[Job, ...]:
    """The jobs of a CSV file, plain or gzipped, by arrival.

    Args:
        path: the file; a name that ends in ``.gz`` is unpacked on the way.
        columns: which column holds what; by default the known format that fits the header.
        measured: throughput tables, looked up by the columns model and batch; without them jobs scale perfectly.
        scaling: ``"strong"`` keeps each job's batch, ``"hybrid"`` lets it follow the number of GPUs.

    Raises:
        UsageError: for a file that is missing, empty, or malformed: file, line, column, what was expected.
    """
    header, rows = read_rows(Path(path))
    columns = columns or detected(header, where=f"{path}:1")
    if missing := [name for name in columns.needed() if name not in header]:
        raise UsageError(f"{path}:1: expected columns {', '.join(missing)}; the header has {', '.join(header)}")
    _check_lookup(columns, measured=measured, scaling=scaling, path=path)
    curve_of = _curves(measured, scaling=scaling)
    jobs = [_job(row, columns=columns, curve_of=curve_of) for row in rows]
    _check_unique(jobs, rows=rows, columns=columns)
    if columns.order == "any":
        return tuple(sorted(jobs, key=lambda job: job.submit_s))
    _check_sorted(jobs, rows=rows, columns=columns)
    return tuple(jobs)


def _job(row: Row, *, columns: Columns, curve_of: _CurveOf | None) -> Job:
    gpus = whole(row.cells[columns.gpus], where=row.at(columns.gpus))
    name = word(row.cells[columns.name], where=row.at(columns.name)) if columns.name else str(row.line)
    submit_s = instant_s(row.cells[columns.submit], where=row.at(columns.submit))
    duration_s = positive_s(row.cells[columns.duration], where=row.at(columns.duration))
    curve = _curve(row, columns=columns, gpus=gpus, curve_of=curve_of)
    try:
        return Job(name, submit_s, gpus, duration_s, curve)
    except UsageError as error:
        raise UsageError(f"{row.where}: {error}") from error


def _curve(row: Row, *, columns: Columns, gpus: int, curve_of: _CurveOf | None) -> Curve:
    if curve_of is None or columns.model is None or columns.batch is None:
        return LINEAR
    batch = whole(row.cells[columns.batch], where=row.at(columns.batch))
    try:
        return curve_of(row.cells[columns.model].strip(), batch, gpus)
    except UsageError as error:
        raise UsageError(f"{row.at(columns.model)}: {error}") from error


def _curves(measured: Measured | None, *, scaling: Scaling) -> _CurveOf | None:
    if measured is None:
        return None

    @cache
    def curve_of(model: str, batch: int, gpus: int) -> Curve:
        if scaling == "hybrid":
            return hybrid_curve(measured.family(model), batch=batch, workers=gpus)
        return measured.curve(model, batch=batch)

    return curve_of


def _check_lookup(columns: Columns, *, measured: Measured | None, scaling: Scaling, path: str | Path) -> None:
    """Nobody should take perfect scaling for the curves that were given."""
    if measured is not None and (columns.model is None or columns.batch is None):
        raise UsageError(
            f"{path}: throughput tables are given, but no column of model and of batch to look them up by: "
            f"name them (model=..,batch=..), or leave the tables out"
        )
    if measured is None and scaling == "hybrid":
        raise UsageError(f"{path}: hybrid scaling needs throughput tables by batch: give them, or scaling strong")


def _check_sorted(jobs: list[Job], *, rows: list[Row], columns: Columns) -> None:
    for (before, job), row in zip(pairwise(jobs), rows[1:], strict=True):
        if job.submit_s < before.submit_s:
            raise UsageError(
                f"{row.at(columns.submit)}: expected at least {before.submit_s:g} s as in the row above, got "
                f"{job.submit_s:g} s: arrivals must be sorted; sort the file, or read it with order=any"
            )


def _check_unique(jobs: list[Job], *, rows: list[Row], columns: Columns) -> None:
    first: dict[str, Row] = {}
    for job, row in zip(jobs, rows, strict=True):
        if job.name in first:
            raise UsageError(
                f"{row.at(columns.name or 'line')}: expected a new name, got {job.name!r} as in line "
                f"{first[job.name].line}: names must be unique; rename one"
            )
        first[job.name] = row
