"""A job of a trace, and the checks on a list of jobs before its simulation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from unicodedata import decimal

from kungfu.errors import UsageError
from kungfu_planning.schedule.curve import LINEAR, MOST_GPUS, Curve

_LATEST_S = 1e10  # 300 years: up to here a float can represent a millisecond's work
_SHORTEST_S = 1e-3


@dataclass(frozen=True)
class ClusterJob:
    """A training job: its request, and its scaling.

    Its work is ``duration_s`` seconds on ``gpus`` GPUs, which is ``duration_s * T(gpus)`` in units of its curve. On p
    GPUs, the job takes ``duration_s * T(gpus) / T(p)`` seconds. A job with ``min_gpus`` = ``max_gpus`` = ``gpus`` is
    inelastic.

    Args:
        name: unique within a trace.
        submit_s: the time of its arrival, in seconds, 0 to 1e10.
        gpus: the GPUs requested by its user, at least 1.
        duration_s: the seconds of its run on exactly ``gpus`` GPUs, 0.001 to 1e10.
        curve: throughput by number of GPUs; perfect scaling by default.
        min_gpus: the minimum number of GPUs that it can run on, 1 to ``gpus``.
        max_gpus: the maximum number of GPUs that it can use, at least ``gpus``; ``None`` for the whole cluster.
        runs: True if the job already runs on its ``gpus`` GPUs when the trace begins. Then ``submit_s`` must be the
            earliest arrival of the trace, and ``duration_s`` is the remaining time.
        user: the name of its user, to group jobs in tables.
        model: the name of its model, to group jobs in tables.

    Raises:
        UsageError: A value is outside its range.
    """

    name: str
    submit_s: float
    gpus: int
    duration_s: float
    curve: Curve = LINEAR
    min_gpus: int = 1
    max_gpus: int | None = None
    runs: bool = False
    user: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.submit_s <= _LATEST_S:
            raise UsageError(
                f"job {self.name}: submitted at {self.submit_s} s; must be a time from 0 to {_LATEST_S:g} s, in seconds"
            )
        if not _SHORTEST_S <= self.duration_s <= _LATEST_S:
            raise UsageError(
                f"job {self.name}: runs for {self.duration_s} s; a duration must be above 0: {_SHORTEST_S:g} s to "
                f"{_LATEST_S:g} s"
            )
        if self.gpus < 1:
            raise UsageError(f"job {self.name}: asks for {self.gpus} GPUs; must be at least 1")
        if not 1 <= self.min_gpus <= self.gpus or (self.max_gpus is not None and self.max_gpus < self.gpus):
            raise UsageError(
                f"job {self.name}: min {self.min_gpus}, asked {self.gpus}, max {self.max_gpus}: "
                f"must satisfy 1 <= min <= asked <= max"
            )


def inelastic(job: ClusterJob) -> ClusterJob:
    """The same job, restricted to the number of GPUs that it requested."""
    return replace(job, min_gpus=job.gpus, max_gpus=job.gpus)


def with_limits(jobs: Iterable[ClusterJob], *, min_share: float, max_share: float) -> tuple[ClusterJob, ...]:
    """The same jobs, each able to run on ``min_share`` to ``max_share`` times the GPUs it requested.

    Both limits are rounded down, the lower limit to at least 1 GPU and at least the job's ``min_gpus``.

    Args:
        jobs: The jobs of a trace.
        min_share: The minimum GPUs of a job, as a share of its request, above 0.
        max_share: The maximum GPUs of a job, as a multiple of its request.

    >>> job = with_limits([ClusterJob("a", 0, 6, 10.0)], min_share=0.25, max_share=4)[0]
    >>> job.min_gpus, job.max_gpus
    (1, 24)
    """
    if not 0 <= min_share <= 1 <= max_share < math.inf:
        raise UsageError(f"shares {min_share} and {max_share} must satisfy 0 <= min <= 1 <= max, both finite")
    return tuple(
        replace(job, min_gpus=max(job.min_gpus, int(job.gpus * min_share)), max_gpus=int(job.gpus * max_share))
        for job in jobs
    )


def arranged(jobs: Sequence[ClusterJob], *, gpus: int) -> tuple[ClusterJob, ...]:
    """The jobs in the order of the simulation: by arrival, then by name.

    Jobs that are already running are before all other jobs.

    Names that are whole numbers are compared as numbers. The order of simultaneous rows in a file has no effect.

    Raises:
        UsageError: The trace is empty, arrivals are unsorted, a name occurs twice, a job is larger than the cluster, or
            jobs that run already do not arrive at the earliest time, or need more GPUs than the cluster has.
    """
    if not 1 <= gpus <= MOST_GPUS:
        raise UsageError(f"a cluster of {gpus} GPUs cannot be simulated: give 1 to {MOST_GPUS:,}")
    if not jobs:
        raise UsageError("the trace is empty: there is nothing to schedule; give at least one job")
    _check_sorted(jobs)
    _check_unique(jobs)
    for job in jobs:
        if job.gpus > gpus:
            raise UsageError(
                f"job {job.name} asks for {job.gpus} GPUs and the cluster has {gpus}: it would wait for ever; "
                f"leave it out or give a larger cluster"
            )
    _check_running(jobs, gpus=gpus)
    return tuple(sorted(jobs, key=lambda job: (job.submit_s, not job.runs, _name_key(job.name))))


def _check_sorted(jobs: Sequence[ClusterJob]) -> None:
    for before, job in pairwise(jobs):
        if job.submit_s < before.submit_s:
            raise UsageError(
                f"arrivals must not go back in time: job {job.name} at {job.submit_s:g} s stands after "
                f"job {before.name} at {before.submit_s:g} s; sort the trace by submission"
            )


def _check_running(jobs: Sequence[ClusterJob], *, gpus: int) -> None:
    running = [job for job in jobs if job.runs]
    held, first_s = sum(job.gpus for job in running), jobs[0].submit_s
    if held > gpus:
        raise UsageError(
            f"the {len(running)} jobs that run when the trace begins hold {held} GPUs and the cluster has {gpus}: "
            f"leave some out or give a larger cluster"
        )
    for job in running:
        if job.submit_s > first_s:
            raise UsageError(
                f"job {job.name} is said to run already when it arrives at {job.submit_s:g} s, after another has "
                f"arrived at {first_s:g} s: jobs that run already must all arrive at the trace's beginning; give them "
                f"its earliest time, and as duration what is left of them"
            )


def _check_unique(jobs: Sequence[ClusterJob]) -> None:
    seen: set[str] = set()
    for job in jobs:
        if job.name in seen:
            raise UsageError(f"two jobs are called {job.name!r}: names must be unique in a trace; rename one")
        seen.add(job.name)


def _name_key(name: str) -> tuple[int, int, str, str]:
    if not name.isdecimal():
        return (1, 0, "", name)
    digits = "".join(str(decimal(sign)) for sign in name).lstrip("0")  # int() refuses thousands of digits
    return (0, len(digits), digits, name)


def with_load(jobs: Sequence[ClusterJob], *, gpus: int, load: float) -> tuple[ClusterJob, ...]:
    """The same jobs with arrival times scaled to a given load.

    The load is the requested GPU seconds divided by the product of ``gpus`` and the time from the first to the last
    arrival.

    Raises:
        UsageError: The load is outside 0.001 to 1000, or all jobs arrive at one instant.

    >>> jobs = [ClusterJob("a", 0, 2, 10.0), ClusterJob("b", 100, 2, 10.0)]
    >>> [job.submit_s for job in with_load(jobs, gpus=4, load=0.5)]
    [0.0, 20.0]
    """
    if not 0.001 <= load <= 1000:
        raise UsageError(f"a load of {load:g} cannot be simulated: give 0.001 to 1000")
    first_s, last_s = jobs[0].submit_s, jobs[-1].submit_s
    if first_s == last_s:
        raise UsageError(f"all jobs arrive at {first_s:g} s: no load can be given to them; leave --load out")
    factor = sum(job.gpus * job.duration_s for job in jobs) / (gpus * load) / (last_s - first_s)
    return tuple(replace(job, submit_s=first_s + (job.submit_s - first_s) * factor) for job in jobs)
