"""The running jobs as a what-if sees them, and the rule by which they share the GPUs.

Allocation: every job has its fewest GPUs; each further GPU goes to the job whose completion time it cuts most,
``R/T(n) - R/T(n+1)`` for R work left, ties to the earlier arrival, until no GPU is left, all have their most, or no
gain is above zero. It stops at a local dip of a curve even if two more GPUs would help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kungfu.schedule.greedy import Climbers, Ladders, build_ladders, fill, saved_time
from kungfu.schedule.state import Floats, Ints, State, Workload, remaining_s

__all__ = ["Crew", "Setting", "after", "allocated", "crew_now", "joined", "left_s", "prepared"]

Number = TypeVar("Number", np.int64, np.float64)
_NO_WORK = 1e-300  # a weight must stay above zero, or an infinite step times it would not be a number


@dataclass(frozen=True)
class Setting:
    """What does not change during a simulation."""

    workload: Workload
    ladders: Ladders
    gpus: int


@dataclass(frozen=True)
class Crew:
    """Jobs in order of arrival, the work each has left in units of its curve, and the GPUs each holds."""

    jobs: Ints
    work: Floats
    held: Ints


def prepared(workload: Workload, gpus: int) -> Setting:
    """The setting of a simulation, with a ladder of saved time for each job."""
    ladders = build_ladders(
        workload.rates, kind=workload.kind, fewest=workload.min_gpus, most=workload.max_gpus, gain=saved_time
    )
    return Setting(workload, ladders, gpus)


def crew_now(state: State) -> Crew:
    """The running jobs of a state."""
    jobs = state.running
    return Crew(jobs, remaining_s(state, jobs=jobs) * _asked_rate(state.workload, jobs), state.progress.gpus[jobs])


def joined(crew: Crew, *, job: int, setting: Setting) -> Crew:
    """The crew with ``job``, which has not run yet, on its fewest GPUs: they may be taken from others later."""
    work = setting.workload
    at = int(np.searchsorted(crew.jobs, job))
    units = float(work.duration_s[job] * work.rates[work.kind[job], work.gpus[job]])
    fewest = int(work.min_gpus[job])
    return Crew(_with(crew.jobs, job, at=at), _with(crew.work, units, at=at), _with(crew.held, fewest, at=at))


def allocated(crew: Crew, *, setting: Setting) -> Crew:
    """The crew with all GPUs shared anew."""
    row = setting.ladders.row[crew.jobs]
    climbers = Climbers(setting.ladders.steps, row, np.maximum(crew.work, _NO_WORK))
    return Crew(crew.jobs, crew.work, fill(climbers, start=crew.held, total=setting.gpus))


def left_s(crew: Crew, *, setting: Setting) -> Floats:
    """Seconds until each job ends if it keeps the GPUs it holds."""
    return crew.work / _rate(crew, setting=setting)


def after(crew: Crew, *, seconds: float, left: Floats, setting: Setting) -> Crew:
    """The crew ``seconds`` later, without those who have ended by then."""
    stay = left > seconds
    work = crew.work - _rate(crew, setting=setting) * seconds
    return Crew(crew.jobs[stay], np.maximum(work[stay], 0.0), crew.held[stay])


def _with(vector: npt.NDArray[Number], value: float, *, at: int) -> npt.NDArray[Number]:
    """``np.insert`` of one value, at a fraction of its cost."""
    return np.concatenate((vector[:at], np.array([value], dtype=vector.dtype), vector[at:]))


def _rate(crew: Crew, *, setting: Setting) -> Floats:
    rates: Floats = setting.workload.rates[setting.workload.kind[crew.jobs], crew.held]
    return rates


def _asked_rate(work: Workload, jobs: Ints) -> Floats:
    rates: Floats = work.rates[work.kind[jobs], work.gpus[jobs]]
    return rates
