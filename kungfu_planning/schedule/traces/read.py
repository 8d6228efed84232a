"""The reader of traces: maps columns to fields of jobs, checks every cell, and locates every error.

A trace here is a published file of a cluster's jobs, one row per job; the trace of a training run is read in
`kungfu.trace`. A new format is another entry of `FORMATS`, or a custom `Columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

from kungfu.errors import UsageError
from kungfu_planning.schedule.curve import LINEAR, Curve
from kungfu_planning.schedule.job import ClusterJob
from kungfu_planning.schedule.measured_curves import ANY_MODEL, MeasuredCurves, hybrid_curve
from kungfu_planning.schedule.traces.cells import (
    TraceRow,
    gpu_count,
    instant_s,
    positive_s,
    read_rows,
    truth,
    whole_number,
    word,
)


@dataclass(frozen=True)
class Columns:
    """The columns of a trace format: each field but ``order`` is a column's name; below is what the column contains.

    Args:
        submit: the arrival: seconds, or a date and time like ``2017-10-09 07:01:55``.
        gpus: the requested GPUs, a whole number.
        duration: the seconds on the requested GPUs.
        name: the job's name; ``None`` names jobs by their lines.
        model: the model, to look up a throughput curve; ``None`` if the trace has no models.
        batch: the total batch size in samples; ``None`` if the trace has no batch sizes.
        user: the job's user; ``None`` if the trace has no users.
        running: 1 for a job that already runs when the trace begins (at its earliest arrival), 0 for other jobs;
            ``None`` if no job runs then.
        order: ``"sorted"`` if rows must be in order of arrival, ``"any"`` if the reader sorts them.
    """

    submit: str
    gpus: str
    duration: str
    name: str | None = None
    model: str | None = None
    batch: str | None = None
    user: str | None = None
    running: str | None = None
    order: Literal["sorted", "any"] = "sorted"

    def needed(self) -> tuple[str, ...]:
        """The names of the columns that a file of this format must have."""
        optional = (self.model, self.batch, self.user, self.running)
        return tuple(column for column in (self.name, self.submit, self.gpus, self.duration, *optional) if column)


FORMATS: dict[str, Columns] = {
    "tiresias": Columns("submit_time", "num_gpu", "duration", "job_id", model="model_name"),
    "itp": Columns("submission_time", "num_gpu", "duration", "job_id", "model_name", "batch_size"),
    "philly-jobs": Columns("submit_time", "num_gpu", "real_duration", "job_id", "model_name", "batch_size"),
    "philly": Columns("timestamp", "num_gpus", "duration", order="any"),
    "sacct": Columns("Submit", "AllocTRES", "Elapsed", "JobID", user="User", order="any"),
}
"""Formats by name: Tiresias' simulator, Microsoft's ITP, one Philly virtual cluster, all of Philly, and Slurm's
``sacct -X -P -o JobID,User,Submit,Elapsed,AllocTRES``."""


def detected(header: Sequence[str], *, where: str) -> Columns:
    """The known format whose columns are all in ``header``; if several formats fit, the one with the most columns.

    Raises:
        UsageError: No format fits.

    >>> detected(["timestamp", "duration", "num_gpus", "gpu_time", "cluster"], where="philly.csv:1").gpus
    'num_gpus'
    """
    fitting = [columns for columns in FORMATS.values() if set(columns.needed()) <= set(header)]
    if not fitting:
        known = "; ".join(f"{name}: {', '.join(columns.needed())}" for name, columns in FORMATS.items())
        raise UsageError(f"{where}: the columns {', '.join(header)} fit no known format ({known}): name your columns")
    return max(fitting, key=lambda columns: len(columns.needed()))


def own_columns(text: str) -> Columns:
    """The `Columns` given by a text like ``submit=arrived,gpus=n,duration=secs,order=any``.

    Raises:
        UsageError: A word is not a field of ``Columns`` or occurs twice, or submit, gpus or duration is missing.

    >>> own_columns("submit=a,gpus=g,duration=d").duration
    'd'
    """
    pairs = [part.partition("=")[::2] for part in text.split(",")]
    given = dict(pairs)
    allowed = set(Columns.__dataclass_fields__)
    wrong = [word for word, value in pairs if word not in allowed or not value]
    # Words that are given twice.
    wrong += [word for word in given if [key for key, _ in pairs].count(word) > 1]
    missing = [word for word in ("submit", "gpus", "duration") if word not in given]
    if wrong or missing or given.get("order", "any") not in ("any", "sorted"):
        raise UsageError(
            f"columns {text!r}: expected submit=..,gpus=..,duration=.. and optionally name, model, batch, user, "
            f"running, "
            f"order=sorted|any; wrong: {wrong or 'none'}, missing: {missing or 'none'}"
        )
    order: Literal["sorted", "any"] = "any" if given.pop("order", "sorted") == "any" else "sorted"
    return Columns(order=order, **given)


BatchScaling = Literal["strong", "hybrid"]
_CurveOf = Callable[[str, int | None, int], tuple[Curve, int]]
"""From model, batch and GPUs: the curve, and the fewest GPUs of the job."""


def read_job_trace(
    path: str | Path,
    *,
    columns: Columns | None = None,
    measured: MeasuredCurves | None = None,
    scaling: BatchScaling = "strong",
    skip: Callable[[UsageError], None] | None = None,
) -> tuple[ClusterJob, ...]:
    """The jobs of a CSV file, plain or gzipped, by arrival.

    Args:
        path: the file; a file whose name ends in ``.gz`` is decompressed.
        columns: the names of the columns; by default the known format that fits the header.
        measured: throughput tables, looked up by the columns model and batch; without them jobs scale perfectly.
        scaling: ``"strong"`` keeps each job's batch, ``"hybrid"`` adapts it to the number of GPUs.
        skip: called with the error of each skipped row; ``None`` skips no row.

    Raises:
        UsageError: The file is missing, empty or malformed; the message names file, line, column and expected value.
    """
    skipped: list[UsageError] = []
    note = None if skip is None else skipped.append
    header, lines = read_rows(Path(path), skip=note)
    columns = columns or detected(header, where=f"{path}:1")
    if missing := [name for name in columns.needed() if name not in header]:
        raise UsageError(f"{path}:1: expected columns {', '.join(missing)}; the header has {', '.join(header)}")
    _check_lookup(columns, measured=measured, scaling=scaling, path=path)
    curve_of = _curves(measured, scaling=scaling)
    read = [_read_or_skipped(row, columns=columns, curve_of=curve_of, skip=note) for row in lines if not _is_step(row)]
    rows, jobs = [row for row, job in read if job], [job for _, job in read if job]
    if not jobs:
        first = f"; of {len(skipped)} bad rows the first: {skipped[0]}" if skipped else ""
        raise UsageError(f"{path}: the trace is empty: none of its rows is a job that can be taken{first}")
    if skip is not None:
        for error in skipped:
            skip(error)
    _check_unique(jobs, rows=rows, columns=columns)
    # The format has no order: sort jobs by arrival.
    if columns.order == "any":
        return tuple(sorted(jobs, key=lambda job: job.submit_s))
    # The format has an order: a row out of order is an error of the file.
    _check_sorted(jobs, rows=rows, columns=columns)
    return tuple(jobs)


def _is_step(row: TraceRow) -> bool:
    """True for a row of `sacct` about a step of a job: the job's number is followed by a dot."""
    return "AllocTRES" in row.cells and "." in row.cells.get("JobID", "")


def _read_or_skipped(
    row: TraceRow, *, columns: Columns, curve_of: _CurveOf | None, skip: Callable[[UsageError], None] | None
) -> tuple[TraceRow, ClusterJob | None]:
    try:
        return row, _job(row, columns=columns, curve_of=curve_of)
    except UsageError as error:
        if skip is None:
            raise
        skip(error)
        return row, None


def _job(row: TraceRow, *, columns: Columns, curve_of: _CurveOf | None) -> ClusterJob:
    gpus = gpu_count(row.cells[columns.gpus], where=row.at(columns.gpus))
    name = word(row.cells[columns.name], where=row.at(columns.name)) if columns.name else str(row.line)
    submit_s = instant_s(row.cells[columns.submit], where=row.at(columns.submit))
    duration_s = positive_s(row.cells[columns.duration], where=row.at(columns.duration))
    curve, least = _curve(row, columns=columns, gpus=gpus, curve_of=curve_of)
    user, model = (row.cells[column].strip() if column else "" for column in (columns.user, columns.model))
    runs = columns.running is not None and truth(row.cells[columns.running], where=row.at(columns.running))
    try:
        return ClusterJob(name, submit_s, gpus, duration_s, curve, least, runs=runs, user=user, model=model)
    except UsageError as error:
        raise UsageError(f"{row.where}: {error}") from error


def _curve(row: TraceRow, *, columns: Columns, gpus: int, curve_of: _CurveOf | None) -> tuple[Curve, int]:
    """The throughput curve of a job (perfect scaling if there is no table), and the job's fewest GPUs."""
    if curve_of is None:
        return LINEAR, 1
    batch = None if columns.batch is None else whole_number(row.cells[columns.batch], where=row.at(columns.batch))
    model = ANY_MODEL if columns.model is None else row.cells[columns.model].strip()
    try:
        return curve_of(model, batch, gpus)
    except UsageError as error:
        raise UsageError(f"{row.at(columns.model or columns.gpus)}: {error}") from error


def _curves(measured: MeasuredCurves | None, *, scaling: BatchScaling) -> _CurveOf | None:
    if measured is None:
        return None

    @cache
    def curve_of(model: str, batch: int | None, gpus: int) -> tuple[Curve, int]:
        if scaling == "hybrid" and batch:
            return hybrid_curve(measured.family(model), batch=batch, workers=gpus), 1
        return measured.job_curve(model, batch=batch, gpus=gpus)

    return curve_of


def _check_lookup(
    columns: Columns, *, measured: MeasuredCurves | None, scaling: BatchScaling, path: str | Path
) -> None:
    """Refuses throughput tables that the trace has no columns to look up, and hybrid scaling without tables."""
    if measured is None:
        if scaling == "hybrid":
            raise UsageError(f"{path}: hybrid scaling needs throughput tables by batch: give them, or scaling strong")
        return
    if ANY_MODEL in measured.families:
        if columns.model is not None:
            raise UsageError(
                f"{path}: its jobs train the models of column {columns.model}, and a profile of one program is given: "
                f"give a folder with a table or a profile of each, as MODEL.json"
            )
        if scaling == "hybrid":
            raise UsageError(f"{path}: hybrid scaling needs throughput tables by batch, and a profile is of one")
    elif columns.model is None or columns.batch is None:
        raise UsageError(
            f"{path}: throughput tables are given, but no column of model and of batch to look them up by: "
            f"name them (model=..,batch=..), or leave the tables out"
        )


def _check_sorted(jobs: list[ClusterJob], *, rows: list[TraceRow], columns: Columns) -> None:
    for (before, job), row in zip(pairwise(jobs), rows[1:], strict=True):
        if job.submit_s < before.submit_s:
            raise UsageError(
                f"{row.at(columns.submit)}: expected at least {before.submit_s:g} s as in the row above, got "
                f"{job.submit_s:g} s: arrivals must be sorted; sort the file, or read it with order=any"
            )


def _check_unique(jobs: list[ClusterJob], *, rows: list[TraceRow], columns: Columns) -> None:
    first: dict[str, TraceRow] = {}
    for job, row in zip(jobs, rows, strict=True):
        if job.name in first:
            raise UsageError(
                f"{row.at(columns.name or 'line')}: expected a new name, got {job.name!r} as in line "
                f"{first[job.name].line}: names must be unique; rename one"
            )
        first[job.name] = row
