"""The outcome of a simulation: the GPUs of each job over time, and the metrics that scheduling papers compare."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

from kungfu_planning.schedule.job import ClusterJob
from kungfu_planning.schedule.state import Floats, Ints


@dataclass(frozen=True)
class Timeline:
    """Busy GPUs and waiting jobs from ``time_s[i]`` until ``time_s[i + 1]``."""

    time_s: Floats
    busy: Ints
    pending: Ints


@dataclass(frozen=True)
class Usage:
    """The usage of each job: GPU seconds, seconds on any GPUs at all, and adjustments while it ran."""

    gpu_seconds: Floats
    held_s: Floats
    adjustments: Ints


@dataclass(frozen=True)
class SimulationResult:
    """The outcome of one simulation; every vector has one entry per job, in the order of ``jobs``."""

    jobs: tuple[ClusterJob, ...]
    gpus: int
    policy: str
    start_s: Floats
    finish_s: Floats
    usage: Usage
    timeline: Timeline


@dataclass(frozen=True)
class SimulationRecord:
    """The outcome in the making, while the simulation runs; only the engine writes it."""

    start_s: Floats
    finish_s: Floats
    usage: Usage
    touched_s: Floats
    moments: list[tuple[float, int, int]] = field(default_factory=list)


def empty_record(count: int) -> SimulationRecord:
    """The record of ``count`` jobs of which none has started."""
    usage = Usage(np.zeros(count), np.zeros(count), np.zeros(count, dtype=np.int64))
    return SimulationRecord(np.full(count, np.nan), np.full(count, np.nan), usage, np.zeros(count))


def record_change(record: SimulationRecord, *, jobs: Ints, before: Ints, after: Ints, now_s: float) -> None:
    """Credit ``jobs`` with what they held until now, and count starts and adjustments."""
    # What they held since they were touched last; the new number counts from now on.
    elapsed = now_s - record.touched_s[jobs]
    record.usage.gpu_seconds[jobs] += before * elapsed
    record.usage.held_s[jobs] += np.where(before > 0, elapsed, 0.0)
    record.usage.adjustments[jobs] += (before > 0) & (after > 0) & (before != after)
    record.touched_s[jobs] = now_s
    # A job that was preempted has started once already.
    first = jobs[(after > 0) & np.isnan(record.start_s[jobs])]
    record.start_s[first] = now_s


def record_event(record: SimulationRecord, *, now_s: float, busy: int, pending: int) -> None:
    """Write down the cluster as it is from now on; a later event of the same instant replaces an earlier one."""
    if record.moments and record.moments[-1][0] == now_s:
        record.moments.pop()
    record.moments.append((now_s, busy, pending))


def finished_result(
    record: SimulationRecord, *, jobs: tuple[ClusterJob, ...], gpus: int, policy: str
) -> SimulationResult:
    """The finished result."""
    moments = np.array(record.moments, dtype=np.float64)
    timeline = Timeline(moments[:, 0], moments[:, 1].astype(np.int64), moments[:, 2].astype(np.int64))
    return SimulationResult(jobs, gpus, policy, record.start_s, record.finish_s, record.usage, timeline)


SIZE_CLASSES: dict[str, tuple[float, float]] = {
    "small": (0.0, 1e4),
    "median": (1e4, 2e5),
    "large": (2e5, float("inf")),
}
"""Size classes of Wu et al., table 2, in GPU seconds requested: from the first number to below the second."""


@dataclass(frozen=True)
class GroupMetrics:
    """Means over a group of jobs; NaN for a group without jobs.

    Attributes:
        jobs: Jobs in the group.
        jct_s: Seconds from arrival to end, the job completion time.
        wait_s: Seconds from arrival to the first start.
        pending_s: Seconds without any GPUs.
        adjustments: Changes of the number of GPUs while the job ran.
    """

    jobs: int
    jct_s: float
    wait_s: float
    pending_s: float
    adjustments: float


@dataclass(frozen=True)
class Summary:
    """The metrics of one simulation.

    Attributes:
        policy: The name of the policy.
        gpus: GPUs of the cluster.
        makespan_s: Seconds from the first arrival to the last end.
        utilisation: Busy GPU seconds over GPUs times makespan, 0 to 1; NaN for a makespan that is too short beside the
            time of day to be told from 0.
        overall: The means over all jobs.
        by_size: The means over each class of `SIZE_CLASSES`.
    """

    policy: str
    gpus: int
    makespan_s: float
    utilisation: float
    overall: GroupMetrics
    by_size: dict[str, GroupMetrics]


def summary(result: SimulationResult) -> Summary:
    """The metrics of a finished simulation.

    Args:
        result: The outcome of `simulate`.

    Returns:
        The means over all jobs and over each size class, and the metrics of the cluster.

    >>> from kungfu_planning.schedule import ClusterJob, fifo, simulate
    >>> figures = summary(simulate([ClusterJob("a", 0, 2, 10.0), ClusterJob("b", 1, 1, 5.0)], gpus=2, policy=fifo()))
    >>> figures.makespan_s, figures.overall.jct_s, figures.overall.wait_s
    (15.0, 12.0, 4.5)
    """
    size = np.array([job.gpus * job.duration_s for job in result.jobs])
    everyone = np.ones(len(size), dtype=np.bool_)
    makespan_s = float(result.finish_s.max()) - min(job.submit_s for job in result.jobs)
    classes = {name: (size >= low) & (size < high) for name, (low, high) in SIZE_CLASSES.items()}
    return Summary(
        policy=result.policy,
        gpus=result.gpus,
        makespan_s=makespan_s,
        utilisation=float(result.usage.gpu_seconds.sum()) / (result.gpus * makespan_s) if makespan_s else math.nan,
        overall=_figures(result, chosen=everyone),
        by_size={name: _figures(result, chosen=chosen) for name, chosen in classes.items()},
    )


def _figures(result: SimulationResult, *, chosen: npt.NDArray[np.bool_]) -> GroupMetrics:
    submit_s = np.array([job.submit_s for job in result.jobs])
    jct_s = result.finish_s - submit_s
    return GroupMetrics(
        jobs=int(chosen.sum()),
        jct_s=_mean(jct_s[chosen]),
        wait_s=_mean((result.start_s - submit_s)[chosen]),
        pending_s=_mean((jct_s - result.usage.held_s)[chosen]),
        adjustments=_mean(result.usage.adjustments[chosen].astype(np.float64)),
    )


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")


def reduction(before: float, *, after: float) -> float:
    """The fraction by which ``after`` is less than ``before``; negative if it is more.

    Args:
        before: The reference, not 0.
        after: The value to compare.

    >>> reduction(30.0, after=27.0)
    0.1
    """
    return (before - after) / before


def summary_as_dict(figures: Summary) -> dict[str, object]:
    """The same as plain values for JSON; a mean over no jobs becomes ``None``."""
    return {key: _plain(item) for key, item in asdict(figures).items()}


def _plain(item: object) -> object:
    if isinstance(item, dict):
        return {key: _plain(inner) for key, inner in item.items()}
    return None if item != item else item
