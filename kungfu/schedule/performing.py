"""Carrying a plan out: the only place that changes where a job stands."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kungfu.errors import UsageError
from kungfu.schedule.outcome.ledger import Ledger, note_change
from kungfu.schedule.state import Floats, Ints, Plan, Progress, State, Workload, remaining_s

__all__ = ["Books", "Pauses", "carry_out", "end_jobs", "nothing_done"]

_LONGEST_S = 1e9


@dataclass(frozen=True)
class Pauses:
    """What an adjustment costs a running job: seconds without progress, and a slower run for being elastic at all.

    Starting, preempting and resuming cost nothing, as in the published simulators. A job that is adjusted during a
    pause waits until the later of the two ends.

    Args:
        out_s: pause when GPUs are added, 0 to 1e9.
        in_s: pause when GPUs are taken, 0 to 1e9.
        overhead: the fraction of throughput that elasticity costs all the time, 0 to 0.99.

    Raises:
        UsageError: for a value outside its range.
    """

    out_s: float = 0.0
    in_s: float = 0.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.out_s <= _LONGEST_S and 0 <= self.in_s <= _LONGEST_S and 0 <= self.overhead <= 0.99):
            raise UsageError(f"{self}: pauses must be 0 to {_LONGEST_S:g} s, the overhead 0 to 0.99")


@dataclass(frozen=True)
class Books:
    """Everything that carrying out writes: where jobs stand, and what is kept of it."""

    progress: Progress
    ledger: Ledger
    pauses: Pauses


def nothing_done(workload: Workload) -> Progress:
    """Where every job stands before it has started."""
    count = len(workload.gpus)
    return Progress(
        gpus=np.zeros(count, dtype=np.int64),
        remaining_s=workload.duration_s.copy(),
        since_s=np.zeros(count),
        speed=np.zeros(count),
        end_s=np.full(count, math.inf),
        finished=np.zeros(count, dtype=np.bool_),
    )


def end_jobs(books: Books, *, jobs: Ints, now_s: float) -> None:
    """Take the GPUs of jobs whose work is done."""
    progress = books.progress
    note_change(books.ledger, jobs=jobs, before=progress.gpus[jobs], after=np.zeros_like(jobs), now_s=now_s)
    books.ledger.finish_s[jobs] = now_s
    progress.gpus[jobs] = 0
    progress.remaining_s[jobs] = 0.0
    progress.speed[jobs] = 0.0
    progress.end_s[jobs] = math.inf
    progress.finished[jobs] = True


def carry_out(plan: Plan, *, state: State, books: Books) -> Ints:
    """Give every job of the plan what it says, and return the indices of those whose GPUs changed.

    Raises:
        UsageError: for a plan with a negative number of GPUs, or one for a job that has ended or not arrived.
    """
    changed = plan.gpus != state.progress.gpus[plan.jobs]
    jobs: Ints = plan.jobs[changed]
    after: Ints = plan.gpus[changed]
    if not len(jobs):
        return jobs
    progress = books.progress
    if after.min() < 0 or progress.finished[jobs].any():
        raise UsageError(
            f"the policy gave {after.tolist()} GPUs to jobs {jobs.tolist()}: give 0 or more, to living jobs"
        )
    before = progress.gpus[jobs]
    note_change(books.ledger, jobs=jobs, before=before, after=after, now_s=state.now_s)
    progress.remaining_s[jobs] = remaining_s(state, jobs=jobs)
    progress.since_s[jobs] = _resume_s(before, after=after, state=state, jobs=jobs, pauses=books.pauses)
    progress.gpus[jobs] = after
    progress.speed[jobs] = _speed(state.workload, jobs=jobs, gpus=after) * (1.0 - books.pauses.overhead)
    _set_ends(progress, jobs=jobs)
    return jobs


def _resume_s(before: Ints, *, after: Ints, state: State, jobs: Ints, pauses: Pauses) -> Floats:
    pause_s = np.where(after > before, pauses.out_s, pauses.in_s)
    resume_s = np.maximum(state.now_s + pause_s, state.progress.since_s[jobs])
    resumes: Floats = np.where((before > 0) & (after > 0), resume_s, state.now_s)
    return resumes


def _speed(workload: Workload, *, jobs: Ints, gpus: Ints) -> Floats:
    kind = workload.kind[jobs]
    speed: Floats = workload.rates[kind, gpus] / workload.rates[kind, workload.gpus[jobs]]
    return speed


def _set_ends(progress: Progress, *, jobs: Ints) -> None:
    runs = jobs[progress.gpus[jobs] > 0]
    progress.end_s[jobs] = math.inf
    progress.end_s[runs] = progress.since_s[runs] + progress.remaining_s[runs] / progress.speed[runs]
