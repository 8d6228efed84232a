"""The figures that scheduling papers compare, for all jobs and by size class."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from kungfu.schedule.outcome.ledger import Result
from kungfu.schedule.state import Floats

__all__ = ["SIZE_CLASSES", "Figures", "Summary", "reduction", "summary", "summary_as_dict"]

SIZE_CLASSES: dict[str, tuple[float, float]] = {
    "small": (0.0, 1e4),
    "median": (1e4, 2e5),
    "large": (2e5, float("inf")),
}
"""Size classes of Wu et al., table 2, in GPU seconds asked for: from the first number to below the second."""


@dataclass(frozen=True)
class Figures:
    """Means over a group of jobs, in seconds; NaN for a group without jobs.

    ``jct_s`` from arrival to end, ``wait_s`` from arrival to the first start, ``pending_s`` all time without GPUs.
    """

    jobs: int
    jct_s: float
    wait_s: float
    pending_s: float
    adjustments: float


@dataclass(frozen=True)
class Summary:
    """The figures of one simulation; ``utilisation`` is busy GPU seconds over GPUs times makespan, 0 to 1.

    It is NaN for a makespan that is too short beside the time of day to be told from 0.
    """

    policy: str
    gpus: int
    makespan_s: float
    utilisation: float
    overall: Figures
    by_size: dict[str, Figures]


def summary(result: Result) -> Summary:
    """The figures of a finished simulation.

    >>> from kungfu.schedule import Job, fifo, simulate
    >>> figures = summary(simulate([Job("a", 0, 2, 10.0), Job("b", 1, 1, 5.0)], gpus=2, policy=fifo()))
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


def _figures(result: Result, *, chosen: npt.NDArray[np.bool_]) -> Figures:
    submit_s = np.array([job.submit_s for job in result.jobs])
    jct_s = result.finish_s - submit_s
    return Figures(
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

    >>> reduction(30.0, after=27.0)
    0.1
    """
    return (before - after) / before


def summary_as_dict(figures: Summary) -> dict[str, object]:
    """The same as plain values for JSON; a mean over no jobs becomes ``None``."""
    return _without_nan(asdict(figures))


def _without_nan(value: dict[str, object]) -> dict[str, object]:
    return {key: _plain(item) for key, item in value.items()}


def _plain(item: object) -> object:
    if isinstance(item, dict):
        return _without_nan(item)
    return None if item != item else item
