"""The state that a policy reads and the plan that it returns: the interface between deciding and performing.

A policy is a pure function from (state, memory) to (plan, new memory). The simulator performs plans on a simulated
cluster; an executor for real jobs can replace the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from kungfu_planning.schedule.curve import rates_up_to
from kungfu_planning.schedule.job import ClusterJob

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Memory = TypeVar("Memory")


@dataclass(frozen=True)
class Workload:
    """The jobs as vectors, one entry per job in order of arrival; a job is identified by its index.

    Attributes:
        gpus: The GPUs that the user requested.
        min_gpus: The minimum number of GPUs that the job runs on.
        max_gpus: The maximum number of GPUs that it can use, at most all of the cluster.
        submit_s: Arrival, seconds.
        duration_s: Seconds on the GPUs that the user requested.
        kind: The row of `rates` with the job's curve.
        runs: True if the job is already running when it arrives.
        rates: ``rates[kind[j], p]`` is the throughput of job j on p GPUs, in the units of its curve.
    """

    gpus: Ints
    min_gpus: Ints
    max_gpus: Ints
    submit_s: Floats
    duration_s: Floats
    kind: Ints
    runs: npt.NDArray[np.bool_]
    rates: Floats


@dataclass(frozen=True)
class JobProgress:
    """The progress of each job. Only the engine writes it; policies get read-only views.

    Attributes:
        gpus: The GPUs that the job holds.
        remaining_s: The work left at `since_s`, in seconds on the GPUs that the user requested.
        since_s: The time from which the job makes progress; in the future while the job is paused.
        speed: The work done per second from `since_s` on, in seconds on the GPUs that the user requested.
        end_s: The end of the job; infinite if the job does not run.
        finished: True if the job has ended.
    """

    gpus: Ints
    remaining_s: Floats
    since_s: Floats
    speed: Floats
    end_s: Floats
    finished: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class State:
    """The cluster at one instant: before the policy decides, or, for ``watch`` of `simulate`, after its plan applies.

    Attributes:
        now_s: The time, seconds.
        gpus: GPUs of the cluster.
        workload: All jobs, including later arrivals.
        progress: The progress of each job.
        running: The indices of the jobs that run, in order of arrival.
        pending: The indices of the jobs that wait, in order of arrival.
        arrived: The indices of the jobs that arrive at this instant, in the same order.
    """

    now_s: float
    gpus: int
    workload: Workload
    progress: JobProgress
    running: Ints
    pending: Ints
    arrived: Ints


@dataclass(frozen=True)
class SchedulePlan:
    """The new GPUs of some jobs; all other jobs keep theirs.

    Attributes:
        jobs: The indices of the jobs.
        gpus: The GPUs of each of these jobs; 0 preempts the job.
        wake_s: The latest time of the next decision, seconds; infinite to wait for an arrival or an end.
    """

    jobs: Ints
    gpus: Ints
    wake_s: float = math.inf


@dataclass(frozen=True)
class ClusterPolicy(Generic[Memory]):
    """A policy: its name, the function that makes its memory from jobs and GPUs, and its decision function."""

    name: str
    begin: Callable[[Workload, int], Memory]
    decide: Callable[[State, Memory], tuple[SchedulePlan, Memory]]


def stateless(name: str, *, decide: Callable[[State], SchedulePlan]) -> ClusterPolicy[None]:
    """Makes a policy without memory from ``decide``, which maps the state to a plan."""
    return ClusterPolicy(name, lambda _workload, _gpus: None, lambda state, memory: (decide(state), memory))


def tabulated(jobs: tuple[ClusterJob, ...], *, gpus: int) -> Workload:
    """The jobs as vectors; needs 8 bytes per GPU of the cluster for each different curve."""
    kinds = {curve: index for index, curve in enumerate(dict.fromkeys(job.curve for job in jobs))}
    return Workload(
        gpus=np.array([job.gpus for job in jobs], dtype=np.int64),
        min_gpus=np.array([job.min_gpus for job in jobs], dtype=np.int64),
        max_gpus=np.array([min(gpus, job.max_gpus or gpus) for job in jobs], dtype=np.int64),
        submit_s=np.array([job.submit_s for job in jobs], dtype=np.float64),
        duration_s=np.array([job.duration_s for job in jobs], dtype=np.float64),
        runs=np.array([job.runs for job in jobs], dtype=np.bool_),
        kind=np.array([kinds[job.curve] for job in jobs], dtype=np.int64),
        rates=np.stack([rates_up_to(curve, gpus=gpus) for curve in kinds]),
    )


def remaining_s(state: State, *, jobs: Ints) -> Floats:
    """The work left of each of ``jobs`` at the state's time, in seconds on the GPUs that its user requested."""
    progress = state.progress
    elapsed = np.maximum(state.now_s - progress.since_s[jobs], 0.0)
    left: Floats = np.maximum(progress.remaining_s[jobs] - progress.speed[jobs] * elapsed, 0.0)
    return left


def read_only(progress: JobProgress) -> JobProgress:
    """The same progress with read-only views of its arrays."""
    views: dict[str, Any] = {field.name: getattr(progress, field.name).view() for field in fields(progress)}
    for view in views.values():
        view.flags.writeable = False
    return JobProgress(**views)
