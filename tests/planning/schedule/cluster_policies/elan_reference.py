"""E-FIFO and E-BF as they are described, in plain loops: the oracle of the fast ones.

It shares nothing with them but throughput by number of GPUs, and plays every future out to its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kungfu_planning.schedule import ClusterJob, Pauses
from tests.planning.schedule.instances import rate_of

RunningJobs = list[tuple[ClusterJob, float]]
"""Jobs in order of arrival, and the work that each has left."""

ROUNDING = 1 + 1e-9


@dataclass
class Running:
    """One running job."""

    job: ClusterJob
    left: float
    gpus: int
    resumes: float
    ends: float


def elan_reference(
    jobs: tuple[ClusterJob, ...], *, gpus: int, pauses: Pauses, depth: int
) -> dict[str, tuple[float, float]]:
    """When each job starts and ends; ``depth`` is how many may be tried behind a refused head, 0 for E-FIFO."""
    todo, waiting, running = list(jobs), [], list[Running]()
    times: dict[str, tuple[float, float]] = {}
    now = 0.0
    while todo or running:
        then = min([*(one.ends for one in running), *(job.submit_s for job in todo[:1])])
        for one in running:
            rate = rate_of(one.job.curve, gpus=one.gpus) * (1 - pauses.overhead)
            one.left = max(0.0, one.left - rate * max(0.0, then - max(now, one.resumes)))
        now = then
        for one in [one for one in running if one.ends <= now]:
            times[one.job.name] = (times[one.job.name][0], now)
            running.remove(one)
        waiting += [job for job in todo if job.submit_s <= now]
        todo = [job for job in todo if job.submit_s > now]
        for job in _admitted(running, waiting=waiting, gpus=gpus, depth=depth):
            waiting.remove(job)
            times[job.name] = (now, math.inf)
            running.append(Running(job, _work(job), 0, now, math.inf))
        running.sort(key=lambda one: one.job.submit_s)
        _share(running, gpus=gpus, now=now, pauses=pauses)
    return times


def _work(job: ClusterJob) -> float:
    return job.duration_s * rate_of(job.curve, gpus=job.gpus)


def _admitted(running: list[Running], *, waiting: list[ClusterJob], gpus: int, depth: int) -> list[ClusterJob]:
    running, held = [(one.job, one.left) for one in running], sum(one.gpus for one in running)
    chosen: list[ClusterJob] = []

    def take(job: ClusterJob) -> None:
        nonlocal held
        running.append((job, _work(job)))
        held += job.min_gpus
        chosen.append(job)

    for place, job in enumerate(waiting):
        if _admissible(running, held=held, job=job, gpus=gpus):
            take(job)
            continue
        spare = gpus - sum(other.min_gpus for other, _ in running)
        behind = [other for other in waiting[place + 1 :] if other.min_gpus <= spare][:depth]
        for other in behind:
            if _admissible(running, held=held, job=other, gpus=gpus):
                opens, with_other = (
                    _opening(each, wanted=job.min_gpus, gpus=gpus)[0]
                    for each in (running, [*running, (other, _work(other))])
                )
                if with_other <= opens * ROUNDING:
                    take(other)
        break
    return chosen


def _admissible(running: RunningJobs, *, held: int, job: ClusterJob, gpus: int) -> bool:
    if sum(other.min_gpus for other, _ in running) + job.min_gpus > gpus:
        return False
    if job.min_gpus <= gpus - held:
        return True
    opens, rest, so_far = _opening(running, wanted=job.min_gpus, gpus=gpus)
    later = [*rest, (job, _work(job))]
    waits = so_far + opens * len(later) + _sum_of_ends(later, gpus=gpus)
    return _sum_of_ends([*running, (job, _work(job))], gpus=gpus) <= waits * ROUNDING


def _sum_of_ends(running: RunningJobs, *, gpus: int) -> float:
    return _opening(running, wanted=gpus + 1, gpus=gpus)[2]


def _opening(running: RunningJobs, *, wanted: int, gpus: int) -> tuple[float, RunningJobs, float]:
    """The first completion that leaves ``wanted`` GPUs free: when, who is left, the sum of ends until then."""
    running = sorted(running, key=lambda member: member[0].submit_s)
    now = total = 0.0
    free = 0
    while running and free < wanted:
        held = _shares(running, gpus=gpus)
        rates = [rate_of(job.curve, gpus=n) for (job, _), n in zip(running, held, strict=True)]
        step = min(left / rate for (_, left), rate in zip(running, rates, strict=True))
        stays = [left / rate > step + 1e-12 for (_, left), rate in zip(running, rates, strict=True)]
        now += step
        total += now * stays.count(False)
        free = gpus - sum(n for n, stay in zip(held, stays, strict=True) if stay)
        running = [(job, left - r * step) for (job, left), r, stay in zip(running, rates, stays, strict=True) if stay]
    return now, running, total


def _shares(running: RunningJobs, *, gpus: int) -> list[int]:
    """The fewest to each, then one by one to whom it saves most time."""
    held = [job.min_gpus for job, _ in running]
    while sum(held) < gpus:
        gains = [
            left / rate_of(job.curve, gpus=n) - left / rate_of(job.curve, gpus=n + 1)
            if n < (job.max_gpus or gpus)
            else 0
            for (job, left), n in zip(running, held, strict=True)
        ]
        best = max(range(len(running)), key=gains.__getitem__, default=None)
        if best is None or gains[best] <= 1e-12:
            break
        held[best] += 1
    return held


def _share(running: list[Running], *, gpus: int, now: float, pauses: Pauses) -> None:
    for one, after in zip(running, _shares([(one.job, one.left) for one in running], gpus=gpus), strict=True):
        if after != one.gpus:
            pause = pauses.out_s if after > one.gpus else pauses.in_s
            one.resumes = max(one.resumes, now + pause) if one.gpus else now
            one.gpus = after
            rate = rate_of(one.job.curve, gpus=after) * (1 - pauses.overhead)
            one.ends = one.resumes + one.left / rate
