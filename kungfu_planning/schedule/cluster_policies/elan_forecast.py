"""Running jobs, and the estimated rest of their schedule, as needed by Elan's admission: no arrivals, no pauses.

Allocation: every job has its fewest GPUs; each further GPU goes to the job whose completion time it cuts most,
``R/T(n) - R/T(n+1)`` for R work left, ties to the earlier arrival, until no GPU is left, all have their most, or no
gain is above zero. It stops at a local dip of a curve even if two more GPUs would help.

Exact futures share the GPUs again at every completion, which costs one sharing per running job. Estimates share them
only twice, now and at one later moment; in between and after it each job keeps its GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kungfu_planning.schedule.cluster_policies.greedy import Climbers, Ladders, build_ladders, fill_gpus, saved_time
from kungfu_planning.schedule.state import Floats, Ints, State, Workload, remaining_s

NumpyScalar = TypeVar("NumpyScalar", np.int64, np.float64)
LEAST_WORK = 1e-300  # a weight must stay above zero, or an infinite step times it would not be a number
ROUNDING = 1 + 1e-9
"""Two futures of equal length are equally good, whatever the rounding of their sums."""


@dataclass(frozen=True)
class JobLadder:
    """A job's ladder of saved time and its throughput by number of GPUs, and the GPUs beyond which none helps."""

    steps: list[float]
    rates: list[float]
    top: int


@dataclass(frozen=True)
class ForecastContext:
    """The jobs, their ladders of saved time and the cluster: all that is constant during a simulation."""

    workload: Workload
    ladders: Ladders
    gpus: int
    _listed: dict[int, JobLadder] = field(default_factory=dict, repr=False)

    def ladder(self, job: int) -> JobLadder:
        """The ladder of one job; jobs with equal ladders share it."""
        row = int(self.ladders.row[job])
        if row not in self._listed:
            steps, rates = self.ladders.steps[row], self.workload.rates[self.workload.kind[job]]
            self._listed[row] = JobLadder(steps.tolist(), rates.tolist(), int((steps > 0).sum()))
        return self._listed[row]

    def fewest(self, job: int) -> int:
        """The fewest GPUs of one job."""
        return int(self.workload.min_gpus[job])

    def whole_work(self, job: int) -> float:
        """The work of a job that has not run yet, in units of its curve."""
        work = self.workload
        return float(work.duration_s[job] * work.rates[work.kind[job], work.gpus[job]])


def prepared(workload: Workload, gpus: int) -> ForecastContext:
    """The context of a simulation, with a ladder of saved time for each job."""
    ladders = build_ladders(
        workload.rates, kind=workload.kind, fewest=workload.min_gpus, most=workload.max_gpus, gain=saved_time
    )
    return ForecastContext(workload, ladders, gpus)


@dataclass(frozen=True)
class RunningJobs:
    """Running jobs in order of arrival, the work each has left in units of its curve, and the GPUs each holds."""

    jobs: Ints
    work: Floats
    held: Ints


def running_now(state: State) -> RunningJobs:
    """The running jobs of a state."""
    jobs, workload = state.running, state.workload
    asked_rate = workload.rates[workload.kind[jobs], workload.gpus[jobs]]
    return RunningJobs(jobs, remaining_s(state, jobs=jobs) * asked_rate, state.progress.gpus[jobs])


def joined(running: RunningJobs, *, job: int, context: ForecastContext) -> RunningJobs:
    """The running jobs and ``job``, which has not run yet, on its fewest GPUs: they may be taken from others later."""
    at = int(np.searchsorted(running.jobs, job))
    return RunningJobs(
        _with(running.jobs, job, at=at),
        _with(running.work, context.whole_work(job), at=at),
        _with(running.held, context.fewest(job), at=at),
    )


def allocated(running: RunningJobs, *, context: ForecastContext) -> RunningJobs:
    """The running jobs with all GPUs shared again."""
    row = context.ladders.row[running.jobs]
    climbers = Climbers(context.ladders.steps, row, np.maximum(running.work, LEAST_WORK))
    return RunningJobs(running.jobs, running.work, fill_gpus(climbers, start=running.held, total=context.gpus))


def _with(vector: npt.NDArray[NumpyScalar], value: float, *, at: int) -> npt.NDArray[NumpyScalar]:
    """``np.insert`` of one value, at a fraction of its cost."""
    return np.concatenate((vector[:at], np.array([value], dtype=vector.dtype), vector[at:]))


@dataclass(frozen=True)
class _Opening:
    """A later moment: its time, the jobs that still run after it, and the sum of all completion times up to it."""

    time_s: float
    running: RunningJobs
    ends_s: float


class EstimatedFuture:
    """The rest of a schedule whose GPUs are shared now and once more, when the GPUs for a waiting job come free.

    Args:
        shared: the running jobs, with all GPUs shared.
        context: curves and size of the cluster.
    """

    def __init__(self, shared: RunningJobs, *, context: ForecastContext) -> None:
        self._now, self._context = shared, context
        self._with: dict[int, EstimatedFuture] = {}

    def pays(self, job: int) -> bool:
        """True if the sum of completion times is no larger if ``job`` starts now than if it waits."""
        wait_s = self._opening_s(self._context.fewest(job))
        wait = self._played(wait_s)
        later = self._shared_with(wait.running, job=job)
        waiting_s = wait.ends_s + wait_s * len(later.jobs) + float(self._left_s(later).sum())
        middle = self.joined(job)._played(wait_s)
        rest = self._shared(middle.running)
        sooner_s = middle.ends_s + wait_s * len(rest.jobs) + float(self._left_s(rest).sum())
        return sooner_s <= waiting_s * ROUNDING

    def delays(self, job: int, *, head: int) -> bool:
        """True if ``head`` finds its fewest GPUs free later if ``job`` starts now."""
        wanted = self._context.fewest(head)
        return self.joined(job)._opening_s(wanted) > self._opening_s(wanted) * ROUNDING

    def joined(self, job: int) -> EstimatedFuture:
        """The future if ``job`` starts now."""
        if job not in self._with:
            self._with[job] = EstimatedFuture(self._shared_with(self._now, job=job), context=self._context)
        return self._with[job]

    @cached_property
    def _left(self) -> Floats:
        return self._left_s(self._now)

    @cached_property
    def _openings(self) -> tuple[Floats, Ints]:
        """The ends of the jobs in their order, and the GPUs that are free after each."""
        order = np.argsort(self._left, kind="stable")
        free = self._context.gpus - int(self._now.held.sum()) + np.cumsum(self._now.held[order])
        return self._left[order], free

    def _opening_s(self, wanted: int) -> float:
        ends_s, free = self._openings
        return float(ends_s[np.searchsorted(free, wanted)])

    def _played(self, seconds: float) -> _Opening:
        """The running jobs some time later, each with the GPUs that it holds, without those that have ended."""
        now, left = self._now, self._left
        stay = left > seconds
        work = now.work - self._rate(now) * seconds
        rest = RunningJobs(now.jobs[stay], np.maximum(work[stay], 0.0), now.held[stay])
        return _Opening(seconds, rest, float(left[~stay].sum()))

    def _shared_with(self, running: RunningJobs, *, job: int) -> RunningJobs:
        """All GPUs shared among the running jobs and ``job``.

        The search for its share begins where its steps fall below the least one that is taken now: nearer than from
        its fewest GPUs, and with the same result.
        """
        more = joined(running, job=job, context=self._context)
        steps = self._context.ladders.steps[self._context.ladders.row[job]] * self._context.whole_work(job)
        more.held[np.searchsorted(more.jobs, job)] = max(
            self._context.fewest(job), int(np.count_nonzero(steps >= self._least_step))
        )
        return self._shared(more)

    @cached_property
    def _least_step(self) -> float:
        """The least of all taken steps; infinite if all jobs have their fewest GPUs."""
        ladders, now = self._context.ladders, self._now
        return float((now.work * ladders.steps[ladders.row[now.jobs], now.held - 1]).min(initial=np.inf))

    def _shared(self, running: RunningJobs) -> RunningJobs:
        return allocated(running, context=self._context)

    def _left_s(self, running: RunningJobs) -> Floats:
        """Seconds until each job ends if it keeps the GPUs it holds."""
        return running.work / self._rate(running)

    def _rate(self, running: RunningJobs) -> Floats:
        workload = self._context.workload
        rates: Floats = workload.rates[workload.kind[running.jobs], running.held]
        return rates
