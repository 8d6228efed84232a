"""Running jobs, and the estimated rest of their schedule for Elan's admission, without arrivals and pauses.

Allocation: every job has its fewest GPUs. Each further GPU is given to the job with the largest decrease of its
completion time, ``R/T(n) - R/T(n+1)`` for R work left (ties: the earlier arrival), until no GPU is left, all jobs have
their most, or no gain is above zero. A job's share stops at a local dip of its curve even if two more GPUs would help.

Exact futures share the GPUs again at every completion, at the cost of one sharing per running job. Estimates share
the GPUs only twice, now and at one later moment; in between and afterwards each job keeps its GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kungfu_planning.schedule.cluster_policies.greedy import Climbers, Ladders, build_ladders, fill_gpus, saved_time
from kungfu_planning.schedule.state import Floats, Ints, State, Workload, remaining_s

NumpyScalar = TypeVar("NumpyScalar", np.int64, np.float64)
LEAST_WORK = 1e-300  # a weight must be above zero, since an infinite step times zero is NaN
ROUNDING = 1 + 1e-9
"""Tolerance for the rounding of sums: two futures of equal length are equally good."""


@dataclass(frozen=True)
class JobLadder:
    """A job's gains (seconds that one more GPU saves per unit of work, see `Ladders`), throughput, and most GPUs."""

    steps: list[float]
    rates: list[float]
    top: int


@dataclass(frozen=True)
class ForecastContext:
    """The constants of a simulation: the jobs, the time that each further GPU saves them, and the cluster.

    Each job has its throughput on the requested GPUs, its whole work, and its minimum number of GPUs.
    """

    workload: Workload
    ladders: Ladders
    requested_rates: Floats
    work: list[float]
    fewest_gpus: list[int]
    job_ladders: list[JobLadder]
    gpus: int

    def ladder(self, job: int) -> JobLadder:
        """The time that each further GPU saves a job (see `JobLadder`); jobs with equal values share one object."""
        return self.job_ladders[job]

    def fewest(self, job: int) -> int:
        """The minimum number of GPUs of a job."""
        return self.fewest_gpus[job]

    def whole_work(self, job: int) -> float:
        """The work of a job that has not run yet, in units of its curve."""
        return self.work[job]


def prepared(workload: Workload, gpus: int) -> ForecastContext:
    """The context of a simulation, with the time that each further GPU saves each job."""
    ladders = build_ladders(
        workload.rates, kind=workload.kind, fewest=workload.min_gpus, most=workload.max_gpus, gain=saved_time
    )
    requested_rates: Floats = workload.rates[workload.kind, workload.gpus]
    work = (workload.duration_s * requested_rates).tolist()
    _, first_jobs = np.unique(ladders.row, return_index=True)
    by_row = [
        JobLadder(steps.tolist(), workload.rates[workload.kind[job]].tolist(), int((steps > 0).sum()))
        for steps, job in zip(ladders.steps, first_jobs, strict=True)
    ]
    job_ladders = [by_row[row] for row in ladders.row.tolist()]
    return ForecastContext(workload, ladders, requested_rates, work, workload.min_gpus.tolist(), job_ladders, gpus)


@dataclass(frozen=True)
class RunningJobs:
    """Running jobs in order of arrival, with the work left of each in units of its curve, and the GPUs of each."""

    jobs: Ints
    work: Floats
    held: Ints


def running_now(state: State, *, context: ForecastContext) -> RunningJobs:
    """The running jobs of ``state``, with the work left of each at the state's time."""
    jobs = state.running
    return RunningJobs(jobs, remaining_s(state, jobs=jobs) * context.requested_rates[jobs], state.progress.gpus[jobs])


def joined(running: RunningJobs, *, job: int, context: ForecastContext) -> RunningJobs:
    """The running jobs and a new ``job`` on its fewest GPUs; all together may hold more GPUs than the cluster has."""
    at = int(np.searchsorted(running.jobs, job))
    return RunningJobs(
        _with(running.jobs, job, at=at),
        _with(running.work, context.whole_work(job), at=at),
        _with(running.held, context.fewest(job), at=at),
    )


def allocated(running: RunningJobs, *, context: ForecastContext) -> RunningJobs:
    """The same running jobs after the greedy rule has shared all GPUs of the cluster among them."""
    row = context.ladders.row[running.jobs]
    climbers = Climbers(context.ladders.steps, row, np.maximum(running.work, LEAST_WORK))
    return RunningJobs(running.jobs, running.work, fill_gpus(climbers, start=running.held, total=context.gpus))


def _with(vector: npt.NDArray[NumpyScalar], value: float, *, at: int) -> npt.NDArray[NumpyScalar]:
    """The vector with ``value`` inserted at index ``at``, like ``np.insert`` at a fraction of the cost."""
    return np.concatenate((vector[:at], np.array([value], dtype=vector.dtype), vector[at:]))


@dataclass(frozen=True)
class _Opening:
    """A future moment: its time, the jobs that still run, and the sum of the completion times of ended jobs."""

    time_s: float
    running: RunningJobs
    ends_s: float


class Openings(NamedTuple):
    """The ends of running jobs on their present GPUs, in order of time, and the free GPUs after each end."""

    ends_s: Floats
    free_after: Ints

    @classmethod
    def of(cls, left_s: Floats, held: Ints, *, gpus: int) -> Openings:
        """The ends and free GPUs of jobs that hold ``held`` GPUs and end in ``left_s`` s, in a cluster of ``gpus``."""
        order = np.argsort(left_s, kind="stable")
        return cls(left_s[order], gpus - int(held.sum()) + np.cumsum(held[order]))

    def first_s(self, wanted: int) -> float:
        """The seconds until so many of these jobs have ended that ``wanted`` GPUs are free."""
        return self.ends_s.item(self.free_after.searchsorted(wanted))


class EstimatedFuture:
    """The rest of a schedule with GPUs shared now, and again when the GPUs for a waiting job become free.

    Args:
        shared: the running jobs, with all GPUs shared.
        context: the curves of the jobs, and the size of the cluster.
    """

    def __init__(self, shared: RunningJobs, *, context: ForecastContext) -> None:
        self._now, self._context = shared, context
        self._with: dict[int, EstimatedFuture] = {}

    def pays(self, job: int) -> bool:
        """True if ``job`` should start now, as the sum of completion times is not larger than after a later start."""
        wait_s = self._openings.first_s(self._context.fewest(job))
        wait = self._played(wait_s)
        later = self._shared_with(wait.running, job=job)
        waiting_s = wait.ends_s + wait_s * len(later.jobs) + float(self._left_s(later).sum())
        middle = self.joined(job)._played(wait_s)
        rest = self._shared(middle.running)
        sooner_s = middle.ends_s + wait_s * len(rest.jobs) + float(self._left_s(rest).sum())
        return sooner_s <= waiting_s * ROUNDING

    def delays(self, job: int, *, head: int) -> bool:
        """True if starting ``job`` now delays the time at which ``head`` can start on its fewest GPUs."""
        wanted = self._context.fewest(head)
        return self.joined(job)._openings.first_s(wanted) > self._openings.first_s(wanted) * ROUNDING

    def joined(self, job: int) -> EstimatedFuture:
        """The future if ``job`` starts now."""
        if job not in self._with:
            self._with[job] = EstimatedFuture(self._shared_with(self._now, job=job), context=self._context)
        return self._with[job]

    @cached_property
    def _left(self) -> Floats:
        return self._left_s(self._now)

    @cached_property
    def _openings(self) -> Openings:
        return Openings.of(self._left, self._now.held, gpus=self._context.gpus)

    def _played(self, seconds: float) -> _Opening:
        """The moment ``seconds`` from now if jobs keep their GPUs until then; jobs that end earlier are removed."""
        now, left = self._now, self._left
        stay = left > seconds
        work = now.work - self._rate(now) * seconds
        rest = RunningJobs(now.jobs[stay], np.maximum(work[stay], 0.0), now.held[stay])
        return _Opening(seconds, rest, float(left[~stay].sum()))

    def _shared_with(self, running: RunningJobs, *, job: int) -> RunningJobs:
        """The running jobs and ``job`` after all GPUs are shared among them.

        The search for the share of ``job`` begins at the number of GPUs that each save ``job`` `_least_step` or more. A
        search from the fewest GPUs of ``job`` would take more steps and give the same result.
        """
        more = joined(running, job=job, context=self._context)
        steps = self._context.ladders.steps[self._context.ladders.row[job]] * self._context.whole_work(job)
        more.held[np.searchsorted(more.jobs, job)] = max(
            self._context.fewest(job), int(np.count_nonzero(steps >= self._least_step))
        )
        return self._shared(more)

    @cached_property
    def _least_step(self) -> float:
        """The least time that the last GPU of any running job saves; infinite if all jobs have their fewest GPUs."""
        ladders, now = self._context.ladders, self._now
        return float((now.work * ladders.steps[ladders.row[now.jobs], now.held - 1]).min(initial=np.inf))

    def _shared(self, running: RunningJobs) -> RunningJobs:
        return allocated(running, context=self._context)

    def _left_s(self, running: RunningJobs) -> Floats:
        """The seconds until the end of each job on its present GPUs."""
        return running.work / self._rate(running)

    def _rate(self, running: RunningJobs) -> Floats:
        workload = self._context.workload
        rates: Floats = workload.rates[workload.kind[running.jobs], running.held]
        return rates
