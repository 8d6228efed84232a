"""The outcome of a simulation: the GPUs of each job over time, and the usual metrics of scheduling papers."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from kungfu.errors import UsageError
from kungfu_planning.schedule.job import ClusterJob
from kungfu_planning.schedule.state import Floats, Ints


@dataclass(frozen=True)
class Timeline:
    """The numbers of busy GPUs and waiting jobs from ``time_s[i]`` until ``time_s[i + 1]``."""

    time_s: Floats
    busy: Ints
    pending: Ints


@dataclass(frozen=True)
class Usage:
    """The usage of each job: GPU seconds, seconds with at least one GPU, and adjustments while it ran."""

    gpu_seconds: Floats
    held_s: Floats
    adjustments: Ints


@dataclass(frozen=True)
class Allocations:
    """Changes of jobs' GPUs in order of time: job ``job[i]`` holds ``gpus[i]`` from ``time_s[i]``."""

    time_s: Floats
    job: Ints
    gpus: Ints


@dataclass(frozen=True)
class SimulationResult:
    """The outcome of one simulation; the times and the usage have one entry per job, in the order of ``jobs``."""

    jobs: tuple[ClusterJob, ...]
    gpus: int
    policy: str
    start_s: Floats
    finish_s: Floats
    usage: Usage
    timeline: Timeline
    allocations: Allocations | None = None


@dataclass(frozen=True)
class SimulationRecord:
    """The outcome so far of a running simulation; only the engine writes it."""

    start_s: Floats
    finish_s: Floats
    usage: Usage
    touched_s: Floats
    moments: list[tuple[float, int, int]] = field(default_factory=list)
    changes: list[tuple[float, Ints, Ints]] | None = None


def empty_record(count: int, *, keep_allocations: bool = False) -> SimulationRecord:
    """The record of ``count`` jobs before any job has started."""
    changes = list[tuple[float, Ints, Ints]]() if keep_allocations else None
    usage = Usage(np.zeros(count), np.zeros(count), np.zeros(count, dtype=np.int64))
    return SimulationRecord(np.full(count, np.nan), np.full(count, np.nan), usage, np.zeros(count), changes=changes)


def record_change(record: SimulationRecord, *, jobs: Ints, before: Ints, after: Ints, now_s: float) -> None:
    """Records that ``jobs`` change from ``before`` to ``after`` GPUs: starts, adjustments, GPU seconds until now."""
    # The old GPUs count since the last change; the new GPUs count from now.
    elapsed = now_s - record.touched_s[jobs]
    record.usage.gpu_seconds[jobs] += before * elapsed
    record.usage.held_s[jobs] += np.where(before > 0, elapsed, 0.0)
    record.usage.adjustments[jobs] += (before > 0) & (after > 0) & (before != after)
    record.touched_s[jobs] = now_s
    # A preempted job has started before.
    first = jobs[(after > 0) & np.isnan(record.start_s[jobs])]
    record.start_s[first] = now_s
    if record.changes is not None:
        record.changes.append((now_s, jobs, after))


def record_event(record: SimulationRecord, *, now_s: float, busy: int, pending: int) -> None:
    """Records the cluster's state from now on; a later event of the same instant replaces an earlier one."""
    if record.moments and record.moments[-1][0] == now_s:
        record.moments.pop()
    record.moments.append((now_s, busy, pending))


def finished_result(
    record: SimulationRecord, *, jobs: tuple[ClusterJob, ...], gpus: int, policy: str
) -> SimulationResult:
    """The result of a finished simulation, from its record."""
    moments = np.array(record.moments, dtype=np.float64)
    timeline = Timeline(moments[:, 0], moments[:, 1].astype(np.int64), moments[:, 2].astype(np.int64))
    allocations = None
    if record.changes is not None:
        times_s = [np.full(len(changed), now_s) for now_s, changed, _ in record.changes]
        parts = (times_s, [changed for _, changed, _ in record.changes], [after for *_, after in record.changes])
        allocations = Allocations(*(np.concatenate(part) for part in parts))
    return SimulationResult(jobs, gpus, policy, record.start_s, record.finish_s, record.usage, timeline, allocations)


SIZE_CLASSES: dict[str, tuple[float, float]] = {
    "small": (0.0, 1e4),
    "median": (1e4, 2e5),
    "large": (2e5, float("inf")),
}
"""Size classes of Wu et al., table 2, by requested GPU seconds: from the first number to below the second."""


class GroupMetrics(msgspec.Struct, kw_only=True):
    """The metrics of a group of jobs, means unless stated otherwise; None for a group without jobs.

    Attributes:
        jobs: Jobs in the group.
        jct_s: Seconds from arrival to end, the job completion time.
        jct_p50_s: The median of the job completion times.
        jct_p95_s: The 95th percentile of these times.
        jct_p99_s: The 99th percentile of these times.
        wait_s: Seconds from arrival to the first start.
        pending_s: Seconds without any GPUs.
        adjustments: Changes of the number of GPUs while the job ran.
    """

    jobs: int
    jct_s: float | None = None
    jct_p50_s: float | None = None
    jct_p95_s: float | None = None
    jct_p99_s: float | None = None
    wait_s: float | None = None
    pending_s: float | None = None
    adjustments: float | None = None


By = Literal["size", "user", "model"]


class Summary(msgspec.Struct, kw_only=True):
    """The metrics of one simulation.

    Attributes:
        policy: The name of the policy.
        gpus: GPUs of the cluster.
        makespan_s: Seconds from the first arrival to the last end.
        utilisation: Busy GPU seconds divided by the product of GPUs and makespan, 0 to 1; None if the makespan is 0
            after rounding.
        overall: The metrics of all jobs.
        groups: The metrics of each class of `SIZE_CLASSES`, or of each user or model, in order of falling GPU seconds.
    """

    policy: str
    gpus: int
    makespan_s: float
    utilisation: float | None
    overall: GroupMetrics
    groups: dict[str, GroupMetrics]


def summary(result: SimulationResult, *, by: By = "size") -> Summary:
    """The metrics of a finished simulation.

    Args:
        result: The outcome of `simulate`.
        by: The property that groups the jobs: class of requested GPU seconds, user or model.

    Returns:
        The metrics of all jobs, of each group of jobs, and of the cluster.

    >>> from kungfu_planning.schedule import ClusterJob, fifo, simulate
    >>> figures = summary(simulate([ClusterJob("a", 0, 2, 10.0), ClusterJob("b", 1, 1, 5.0)], gpus=2, policy=fifo()))
    >>> figures.makespan_s, figures.overall.jct_s, figures.overall.jct_p95_s, figures.overall.wait_s
    (15.0, 12.0, 13.8, 4.5)
    """
    makespan_s = float(result.finish_s.max()) - min(job.submit_s for job in result.jobs)
    busy_s = float(result.usage.gpu_seconds.sum())
    return Summary(
        policy=result.policy,
        gpus=result.gpus,
        makespan_s=makespan_s,
        utilisation=busy_s / (result.gpus * makespan_s) if makespan_s else None,
        overall=_figures(result, chosen=np.ones(len(result.jobs), dtype=np.bool_)),
        groups={name: _figures(result, chosen=chosen) for name, chosen in _groups(result, by=by).items()},
    )


def _groups(result: SimulationResult, *, by: By) -> dict[str, npt.NDArray[np.bool_]]:
    """For each group, by name, a mask that is True for the jobs of the group."""
    size = np.array([job.gpus * job.duration_s for job in result.jobs])
    if by == "size":
        return {name: (size >= low) & (size < high) for name, (low, high) in SIZE_CLASSES.items()}
    names = np.array([job.user if by == "user" else job.model for job in result.jobs])
    members = {str(name): names == name for name in np.unique(names)}
    return dict(sorted(members.items(), key=lambda member: -float(size[member[1]].sum())))


def _figures(result: SimulationResult, *, chosen: npt.NDArray[np.bool_]) -> GroupMetrics:
    if not chosen.any():
        return GroupMetrics(jobs=0)
    submit_s = np.array([job.submit_s for job in result.jobs])
    jct_s = result.finish_s - submit_s
    p50_s, p95_s, p99_s = np.percentile(jct_s[chosen], (50, 95, 99)).tolist()
    return GroupMetrics(
        jobs=int(chosen.sum()),
        jct_s=float(jct_s[chosen].mean()),
        jct_p50_s=p50_s,
        jct_p95_s=p95_s,
        jct_p99_s=p99_s,
        wait_s=float((result.start_s - submit_s)[chosen].mean()),
        pending_s=float((jct_s - result.usage.held_s)[chosen].mean()),
        adjustments=float(result.usage.adjustments[chosen].mean()),
    )


def reduction(before: float | None, *, after: float | None) -> float | None:
    """The fraction by which ``after`` is less than ``before``; negative if ``after`` is more, None if either is None.

    Args:
        before: The reference, not 0.
        after: The value to compare.

    >>> reduction(30.0, after=27.0)
    0.1
    """
    return (before - after) / before if before and after is not None else None


def write_jobs(result: SimulationResult, *, path: Path) -> None:
    """Writes a CSV file with a row for each job; the file is complete or absent.

    The column ``allocation`` has the GPUs over time as ``seconds:GPUs`` separated by spaces; it is empty if the
    simulation did not keep allocations.

    Raises:
        UsageError: The file cannot be written.
    """
    held: list[list[str]] = [[] for _ in result.jobs]
    if (changes := result.allocations) is not None:
        rows = zip(changes.time_s.tolist(), changes.job.tolist(), changes.gpus.tolist(), strict=True)
        for time_s, job, gpus in rows:
            held[job].append(f"{time_s:.12g}:{gpus}")
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(_COLUMNS)
    usage, columns = result.usage, (result.start_s, result.finish_s, result.usage.gpu_seconds, result.usage.adjustments)
    for job, start_s, end_s, gpu_s, moves, pending_s, spans in zip(
        result.jobs, *(column.tolist() for column in columns),
        (result.finish_s - usage.held_s).tolist(), held, strict=True,
    ):  # fmt: skip
        figures = (start_s, end_s, end_s - job.submit_s, pending_s - job.submit_s, gpu_s)
        words = (job.name, job.user, job.model, f"{job.submit_s:.12g}", job.gpus)
        writer.writerow((*words, *(f"{each:.12g}" for each in figures), moves, " ".join(spans)))
    try:
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            unfinished.write_text(lines.getvalue(), encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: {reason}; give a file in a folder that can be written to") from error


_COLUMNS = (
    "name", "user", "model", "submit_s", "gpus", "start_s", "end_s", "jct_s", "pending_s", "gpu_seconds", "adjustments",
    "allocation",
)  # fmt: skip
