"""Measured throughput: tables by model and batch, and the curve of a batch that adapts to the number of GPUs.

A table is one CSV file per model, with one row per batch size and one column per GPU count. Hybrid scaling keeps the
batch while strong scaling still helps, and else doubles the batch (Xie et al., *Elan*, 2020, algorithm 1). Read
literally, the algorithm also covers fewer workers: the loop is skipped and the batch shrinks in proportion, although
the paper's text is about adding workers only. Both readings are available.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from kungfu.errors import UsageError
from kungfu_planning.profile import read_profile
from kungfu_planning.schedule.curve import Curve, best_gpus, rate_at


@dataclass(frozen=True)
class MeasuredCurves:
    """The curves of several models: ``families[model][batch]`` is a ``Curve`` in iterations per second.

    Args:
        families: the curves by model and total batch size, in samples.
        measured_only: True if batches and sizes that were not measured are refused instead of interpolated.

    Raises:
        UsageError: Raised by methods if a model, a batch or a number of GPUs was not measured.
    """

    families: Mapping[str, Mapping[int, Curve]]
    measured_only: bool = False

    def family(self, model: str) -> Mapping[int, Curve]:
        """All curves of one model, by total batch size."""
        if model not in self.families:
            raise UsageError(f"no throughput of model {model!r} is known; there are {sorted(self.families)}")
        return self.families[model]

    def curve(self, model: str, *, batch: int) -> Curve:
        """The strong-scaling curve of ``model`` at a total batch of ``batch`` samples.

        Between two measured batches the time of an iteration is linear in the batch. Below the smallest batch the time
        is constant; beyond the largest, samples per second are constant: nothing is extrapolated upwards.
        """
        family = self.family(model)
        if batch in family:
            return staircase(family[batch]) if self.measured_only else family[batch]
        if self.measured_only:
            raise UsageError(f"no throughput of {model!r} at batch {batch} is known; there are {sorted(family)}")
        return _at_batch(family, batch=batch)

    def job_curve(self, model: str, *, batch: int | None, gpus: int) -> tuple[Curve, int]:
        """The curve of a job, and its minimum number of GPUs.

        Args:
            model: the job's model.
            batch: its total batch size in samples; None for the smallest measured batch.
            gpus: the GPUs that it requests.

        Raises:
            UsageError: As from ``curve``, or ``gpus`` was not measured and ``measured_only`` is set.
        """
        batch = batch or min(self.family(model))
        curve = self.curve(model, batch=batch)
        if not self.measured_only:
            return curve, 1
        counts = self.families[model][batch].gpus
        if gpus not in counts:
            raise UsageError(
                f"{gpus} GPUs were not measured; there are {', '.join(map(str, counts))}: measure that size, or leave "
                f"measured-only out"
            )
        return curve, counts[0]


def _at_batch(family: Mapping[int, Curve], *, batch: int) -> Curve:
    smaller, larger = (
        max((one for one in family if one < batch), default=0),
        min((one for one in family if one > batch), default=0),
    )
    if not smaller:
        return family[larger]
    if not larger:
        curve = family[smaller]
        return Curve(curve.gpus, tuple(rate * smaller / batch for rate in curve.rates))
    share = (batch - smaller) / (larger - smaller)
    low, high = family[smaller], family[larger]
    counts = tuple(sorted({*low.gpus, *high.gpus}))
    times = [(1 - share) / rate_at(low, gpus=n) + share / rate_at(high, gpus=n) for n in counts]
    return Curve(counts, tuple(1 / time for time in times))


def staircase(curve: Curve) -> Curve:
    """The curve without interpolation: other numbers of GPUs have the rate of the next smaller measured number.

    >>> staircase(Curve((1, 4), (10.0, 30.0)))
    Curve(gpus=(1, 3, 4), rates=(10.0, 10.0, 30.0))
    """
    points = dict(zip(curve.gpus, curve.rates, strict=True))
    for (_, rate), (following, _) in pairwise(tuple(points.items())):
        points[following - 1] = points.get(following - 1, rate)
    return Curve(tuple(sorted(points)), tuple(points[gpus] for gpus in sorted(points)))


def read_throughputs(path: str | Path, *, measured_only: bool = False) -> MeasuredCurves:
    """The curves of a folder of tables, or of one profile.

    A table is a file ``MODEL.csv`` with the header ``global_batch_size,1,2,4,...`` and cells in iterations per second.
    An empty cell at either end of a row is a size that was not measured. An empty cell between two numbers is an error.
    ``MODEL.json`` is a profile by `kungfu profile`. A single profile instead of the folder applies to all jobs.

    Args:
        path: the folder, or a file ``profile.json``.
        measured_only: True if batches and sizes that were not measured are refused.

    Raises:
        UsageError: The folder has no tables, or a cell is a hole (empty between two numbers), zero, or not a number;
            the message has file, line and column.
    """
    path = Path(path)
    try:
        if path.suffix == ".json" and path.is_file():
            return MeasuredCurves({ANY_MODEL: _profiled(path)}, measured_only)
        tables = sorted(one for ending in ("csv", "json") for one in path.glob(f"*.{ending}")) if path.is_dir() else []
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a folder with files like resnet50.csv") from error
    if not tables:
        raise UsageError(
            f"{path} holds no throughput tables: give a folder with files like resnet50.csv, or a profile.json"
        )
    families: dict[str, dict[int, Curve]] = {}
    for table in tables:
        found = _read_table(table) if table.suffix == ".csv" else _profiled(table)
        if twice := families.get(table.stem, {}).keys() & found.keys():
            raise UsageError(f"{table}: {table.stem} at batch {min(twice)} is in its table too: leave one of the two")
        families[table.stem] = families.get(table.stem, {}) | found
    return MeasuredCurves(families, measured_only)


ANY_MODEL = ""
"""The model of a single profile, for all jobs of a trace without models."""


def _profiled(path: Path) -> dict[int, Curve]:
    family = {}
    for profile in read_profile(path).by_batch():
        if profile.batch is None:
            batches = " and ".join(f"{one.batch:g} on {one.size}" for one in profile.sizes)
            raise UsageError(f"{path}: the batch differed between sizes ({batches}): measure with one batch for all")
        rates = tuple(each.samples_per_s / profile.batch for each in profile.sizes)
        family[profile.batch] = Curve(tuple(profile.points), rates)
    return family


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
    """The non-empty lines of a table, each with its line number."""
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


BatchOnScaleIn = Literal["shrink", "keep"]


def hybrid_batch(
    batch: int, *, workers: int, target: int, optimum: Callable[[int], int], scale_in: BatchOnScaleIn = "shrink"
) -> int:
    """The total batch size, in samples, after going from ``workers`` to ``target`` workers.

    The result is the first ``k * batch``, for k = 1, 2, 4, ... up to ``target / workers``, whose strong-scaling optimum
    is at least ``target`` workers. Without such a k, it is ``batch * target / workers``, rounded down and at least 1.

    Args:
        batch: total batch size before, in samples, at least 1.
        workers: workers before, at least 1.
        target: workers after, at least 1.
        optimum: returns the number of workers at which a given total batch trains fastest.
        scale_in: the effect of fewer workers on the batch: ``"shrink"`` (the algorithm as printed) or ``"keep"``.

    >>> best = {64: 32, 128: 64}.__getitem__
    >>> hybrid_batch(64, workers=8, target=16, optimum=best), hybrid_batch(64, workers=8, target=64, optimum=best)
    (64, 128)
    >>> hybrid_batch(64, workers=8, target=2, optimum=best), hybrid_batch(
    ...     64, workers=8, target=2, optimum=best, scale_in="keep"
    ... )
    (16, 64)
    """
    if min(batch, workers, target) < 1:
        raise UsageError(f"batch {batch}, workers {workers} and target {target} must all be at least 1")
    if target < workers and scale_in == "keep":
        return batch
    factor = 1
    while factor * workers <= target:
        if optimum(factor * batch) >= target:
            return factor * batch
        factor *= 2
    return max(1, batch * target // workers)


def hybrid_curve(family: Mapping[int, Curve], *, batch: int, workers: int, scale_in: BatchOnScaleIn = "keep") -> Curve:
    """The curve in samples per second if the batch is set by ``hybrid_batch`` for every number of GPUs.

    ``T(n) = B(n) * r(B(n), n)`` with B(n) the batch of algorithm 1 and r the measured iterations per second. Only
    measured batches have rates: a batch that was not measured is replaced by the largest measured batch below it, or
    else by the smallest, so the curve never has a rate that was not measured.

    Args:
        family: curves in iterations per second by total batch size, including ``batch``.
        batch: the job's total batch size, in samples.
        workers: the GPUs requested by the job's user, for which the batch is ``batch``.
        scale_in: see ``hybrid_batch``; the default keeps the batch, as small batches were rarely measured.

    >>> family = {64: Curve((1, 2, 4), (4.0, 6.0, 5.0)), 128: Curve((1, 2, 4), (2.0, 4.0, 6.0))}
    >>> hybrid_curve(family, batch=64, workers=1).rates[-1]  # 4 GPUs: past the optimum of 64, so 128 samples
    768.0
    """
    if batch not in family:
        raise UsageError(
            f"no curve was measured at batch {batch}; there are {sorted(family)}: measure it or choose one"
        )
    last = max(curve.gpus[-1] for curve in family.values())
    counts = tuple(range(1, last + 1))
    chosen = [_measured_batch(family, batch=batch, workers=workers, target=n, scale_in=scale_in) for n in counts]
    return Curve(counts, tuple(size * rate_at(family[size], gpus=n) for n, size in zip(counts, chosen, strict=True)))


def _measured_batch(
    family: Mapping[int, Curve], *, batch: int, workers: int, target: int, scale_in: BatchOnScaleIn
) -> int:
    def optimum(size: int) -> int:
        return best_gpus(family[size]) if size in family else 0

    wanted = hybrid_batch(batch, workers=workers, target=target, optimum=optimum, scale_in=scale_in)
    return max((size for size in family if size <= wanted), default=min(family))
