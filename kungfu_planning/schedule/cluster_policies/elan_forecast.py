"""The simulated rest of a schedule, as needed by Elan's admission: no arrivals, no pauses.

Allocation: every job has its fewest GPUs; each further GPU goes to the job whose completion time it cuts most,
``R/T(n) - R/T(n+1)`` for R work left, ties to the earlier arrival, until no GPU is left, all have their most, or no
gain is above zero. It stops at a local dip of a curve even if two more GPUs would help.

Exact forecasts share the GPUs again at every completion, which costs one sharing per running job. Estimates share them
only twice, now and at one later moment; in between and after it each job keeps its GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kungfu_planning.schedule.cluster_policies.greedy import Climbers, Ladders, build_ladders, fill_gpus, saved_time
from kungfu_planning.schedule.state import Floats, Ints, State, Workload, remaining_s

NumpyScalar = TypeVar("NumpyScalar", np.int64, np.float64)
_NO_WORK = 1e-300  # a weight must stay above zero, or an infinite step times it would not be a number


@dataclass(frozen=True)
class ForecastContext:
    """The jobs, their ladders of saved time and the cluster: all that is constant during a simulation."""

    workload: Workload
    ladders: Ladders
    gpus: int


@dataclass(frozen=True)
class RunningJobs:
    """Running jobs in order of arrival, the work each has left in units of its curve, and the GPUs each holds."""

    jobs: Ints
    work: Floats
    held: Ints


def prepared(workload: Workload, gpus: int) -> ForecastContext:
    """The context of a simulation, with a ladder of saved time for each job."""
    ladders = build_ladders(
        workload.rates, kind=workload.kind, fewest=workload.min_gpus, most=workload.max_gpus, gain=saved_time
    )
    return ForecastContext(workload, ladders, gpus)


def running_now(state: State) -> RunningJobs:
    """The running jobs of a state."""
    jobs = state.running
    return RunningJobs(
        jobs, remaining_s(state, jobs=jobs) * _asked_rate(state.workload, jobs), state.progress.gpus[jobs]
    )


def joined(running: RunningJobs, *, job: int, context: ForecastContext) -> RunningJobs:
    """The running jobs and ``job``, which has not run yet, on its fewest GPUs: they may be taken from others later."""
    work = context.workload
    at = int(np.searchsorted(running.jobs, job))
    units = float(work.duration_s[job] * work.rates[work.kind[job], work.gpus[job]])
    fewest = int(work.min_gpus[job])
    return RunningJobs(
        _with(running.jobs, job, at=at), _with(running.work, units, at=at), _with(running.held, fewest, at=at)
    )


def allocated(running: RunningJobs, *, context: ForecastContext) -> RunningJobs:
    """The running jobs with all GPUs shared again."""
    row = context.ladders.row[running.jobs]
    climbers = Climbers(context.ladders.steps, row, np.maximum(running.work, _NO_WORK))
    return RunningJobs(running.jobs, running.work, fill_gpus(climbers, start=running.held, total=context.gpus))


def left_s(running: RunningJobs, *, context: ForecastContext) -> Floats:
    """Seconds until each job ends if it keeps the GPUs it holds."""
    return running.work / _rate(running, context=context)


def after(running: RunningJobs, *, seconds: float, left: Floats, context: ForecastContext) -> RunningJobs:
    """The running jobs ``seconds`` later, without those that have ended by then."""
    stay = left > seconds
    work = running.work - _rate(running, context=context) * seconds
    return RunningJobs(running.jobs[stay], np.maximum(work[stay], 0.0), running.held[stay])


def _with(vector: npt.NDArray[NumpyScalar], value: float, *, at: int) -> npt.NDArray[NumpyScalar]:
    """``np.insert`` of one value, at a fraction of its cost."""
    return np.concatenate((vector[:at], np.array([value], dtype=vector.dtype), vector[at:]))


def _rate(running: RunningJobs, *, context: ForecastContext) -> Floats:
    rates: Floats = context.workload.rates[context.workload.kind[running.jobs], running.held]
    return rates


def _asked_rate(work: Workload, jobs: Ints) -> Floats:
    rates: Floats = work.rates[work.kind[jobs], work.gpus[jobs]]
    return rates


@dataclass(frozen=True)
class Opening:
    """The first completion after which enough GPUs are free.

    Attributes:
        time_s: when it is, in seconds from now.
        running: the jobs that still run after it.
        ends_s: the sum of all completion times up to it.
    """

    time_s: float
    running: RunningJobs
    ends_s: float


def sum_of_ends_s(running: RunningJobs, *, context: ForecastContext) -> float:
    """The sum of all completion times, in seconds from now."""
    return opening(running, wanted=context.gpus + 1, context=context).ends_s  # never free: up to the last completion


def opening(running: RunningJobs, *, wanted: int, context: ForecastContext) -> Opening:
    """When ``wanted`` GPUs first lie free after a completion, before they are shared again."""
    now_s, total_s = 0.0, 0.0
    while len(running.jobs):
        step = _next_completion(running, context=context)
        now_s += step.time_s
        # Several jobs may end at the same time.
        total_s += now_s * (len(running.jobs) - len(step.running.jobs))
        running = step.running
        if context.gpus - int(running.held.sum()) >= wanted:
            break
    return Opening(now_s, running, total_s)


def estimated_opening(running: RunningJobs, *, wanted: int, context: ForecastContext) -> Opening:
    """The same if every job kept the GPUs that one sharing gives now."""
    running = allocated(running, context=context)
    # In the order of their ends, each job adds its GPUs to those that are free.
    left = left_s(running, context=context)
    order = np.argsort(left, kind="stable")
    free = context.gpus - int(running.held.sum()) + np.cumsum(running.held[order])
    return _played(running, seconds=float(left[order[np.searchsorted(free, wanted)]]), context=context)


def estimated_sum_of_ends_s(running: RunningJobs, *, again_s: float, context: ForecastContext) -> float:
    """The sum of all completion times if the GPUs are shared now and once more ``again_s`` seconds from now."""
    middle = _played(allocated(running, context=context), seconds=again_s, context=context)
    rest = allocated(middle.running, context=context)
    return middle.ends_s + again_s * len(rest.jobs) + float(left_s(rest, context=context).sum())


def _next_completion(running: RunningJobs, *, context: ForecastContext) -> Opening:
    running = allocated(running, context=context)
    return _played(running, seconds=float(left_s(running, context=context).min()), context=context)


def _played(running: RunningJobs, *, seconds: float, context: ForecastContext) -> Opening:
    """The running jobs some time later, each with the GPUs that it holds."""
    left = left_s(running, context=context)
    rest = after(running, seconds=seconds, left=left, context=context)
    return Opening(seconds, rest, float(left[left <= seconds].sum()))
