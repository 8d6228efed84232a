"""What a simulation writes down: per job when and how much it ran, and over time how full the cluster was."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kungfu.schedule.job import Job
from kungfu.schedule.state import Floats, Ints

__all__ = ["Ledger", "Result", "Timeline", "Usage", "close_books", "note_change", "note_event", "open_books"]


@dataclass(frozen=True)
class Timeline:
    """Busy GPUs and waiting jobs from ``time_s[i]`` until ``time_s[i + 1]``."""

    time_s: Floats
    busy: Ints
    pending: Ints


@dataclass(frozen=True)
class Usage:
    """What each job was given: GPU seconds, seconds on any GPUs at all, and adjustments while it ran."""

    gpu_seconds: Floats
    held_s: Floats
    adjustments: Ints


@dataclass(frozen=True)
class Result:
    """The outcome of one simulation; every vector has one entry a job, in the order of ``jobs``."""

    jobs: tuple[Job, ...]
    gpus: int
    policy: str
    start_s: Floats
    finish_s: Floats
    usage: Usage
    timeline: Timeline


@dataclass(frozen=True)
class Ledger:
    """The books while they are open; only the engine writes them."""

    start_s: Floats
    finish_s: Floats
    usage: Usage
    touched_s: Floats
    moments: list[tuple[float, int, int]] = field(default_factory=list)


def open_books(count: int) -> Ledger:
    """Empty books for ``count`` jobs: nobody has started."""
    usage = Usage(np.zeros(count), np.zeros(count), np.zeros(count, dtype=np.int64))
    return Ledger(np.full(count, np.nan), np.full(count, np.nan), usage, np.zeros(count))


def note_change(ledger: Ledger, *, jobs: Ints, before: Ints, after: Ints, now_s: float) -> None:
    """Credit ``jobs`` with what they held until now, and count starts and adjustments."""
    elapsed = now_s - ledger.touched_s[jobs]
    ledger.usage.gpu_seconds[jobs] += before * elapsed
    ledger.usage.held_s[jobs] += np.where(before > 0, elapsed, 0.0)
    ledger.usage.adjustments[jobs] += (before > 0) & (after > 0) & (before != after)
    ledger.touched_s[jobs] = now_s
    first = jobs[(after > 0) & np.isnan(ledger.start_s[jobs])]
    ledger.start_s[first] = now_s


def note_event(ledger: Ledger, *, now_s: float, busy: int, pending: int) -> None:
    """Write down the cluster as it is from now on; a later event of the same instant replaces an earlier one."""
    if ledger.moments and ledger.moments[-1][0] == now_s:
        ledger.moments.pop()
    ledger.moments.append((now_s, busy, pending))


def close_books(ledger: Ledger, *, jobs: tuple[Job, ...], gpus: int, policy: str) -> Result:
    """The finished result."""
    moments = np.array(ledger.moments, dtype=np.float64)
    timeline = Timeline(moments[:, 0], moments[:, 1].astype(np.int64), moments[:, 2].astype(np.int64))
    return Result(jobs, gpus, policy, ledger.start_s, ledger.finish_s, ledger.usage, timeline)
