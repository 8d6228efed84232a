"""Tiresias and Elastic-Tiresias as their authors describe them, in plain loops that remember nothing between events.

Slow and literal, the oracle of the fast one. Only the rounding of times is the same: a limit counts as reached 1e-5 s
early, a wake comes at whole seconds from now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kungfu_planning.schedule import LINEAR, ClusterJob, Pauses, inelastic
from tests.planning.schedule.instances import rate_of


@dataclass(frozen=True)
class JobLimits:
    """N of rule R1, the quanta, the starvation factor, and what adjusting costs."""

    pending_over: int
    quanta: tuple[float, ...]
    starvation: float | None
    pauses: Pauses


class CatalogueEntry:
    """A job and all that is known of it."""

    def __init__(self, job: ClusterJob) -> None:
        self.job, self.gpus, self.queue = job, 0, 0
        self.left = job.duration_s * rate_of(job.curve, gpus=job.gpus)
        self.executed = self.service = self.waited = self.resumes = 0.0
        self.ends = math.inf

    def rate(self, gpus: int, *, overhead: float) -> float:
        return rate_of(self.job.curve, gpus=gpus) * (1 - overhead)

    def gain(self, gpus: int) -> float:
        now = rate_of(self.job.curve, gpus=gpus)
        return (rate_of(self.job.curve, gpus=gpus + 1) - now) / now


def elastic_reference(jobs: tuple[ClusterJob, ...], *, gpus: int, rules: JobLimits) -> dict[str, float]:
    """When each job ends."""
    queues: list[list[CatalogueEntry]] = [[] for _ in (*rules.quanta, math.inf)]
    todo, living = [CatalogueEntry(job) for job in jobs], []
    ends: dict[str, float] = {}
    now, wake = 0.0, math.inf
    while todo or living:
        coming = todo[0].job.submit_s if todo else math.inf
        then = min(coming, wake, *(entry.ends for entry in living), math.inf)
        for entry in living:
            _pass(entry, now=now, then=then, rules=rules)
        now = then
        for entry in [entry for entry in living if entry.ends <= now]:
            ends[entry.job.name] = now
            living.remove(entry)
            queues[entry.queue].remove(entry)
        fresh = [entry for entry in todo if entry.job.submit_s <= now]
        todo = todo[len(fresh) :]
        queues[0].extend(fresh)
        for entry in living:
            _move(entry, queues=queues, rules=rules)
        living.extend(fresh)
        _commit(_planned(queues, gpus=gpus, rules=rules), now=now, rules=rules)
        for queue in queues:
            queue.sort(key=lambda entry: entry.gpus == 0)
        wake = now + min((_wakes_in(entry, rules=rules) for entry in living), default=math.inf)
    return ends


def rigid_reference(
    jobs: tuple[ClusterJob, ...], *, gpus: int, quanta: tuple[float, ...], starvation: float | None
) -> dict[str, float]:
    """When each job ends under Tiresias: jobs of one size are neither shrunk nor grown.

    What they do in a second does not matter then; with perfect scaling the times of whole numbers stay whole.
    """
    rigid = tuple(replace(inelastic(job), curve=LINEAR) for job in jobs)
    return elastic_reference(rigid, gpus=gpus, rules=JobLimits(0, quanta, starvation, Pauses()))


def _pass(entry: CatalogueEntry, *, now: float, then: float, rules: JobLimits) -> None:
    if entry.gpus:
        trained = max(0.0, then - max(now, entry.resumes))
        entry.left = max(0.0, entry.left - trained * entry.rate(entry.gpus, overhead=rules.pauses.overhead))
        entry.executed += then - now
        entry.service += entry.gpus * (then - now)
    elif entry.executed:
        entry.waited += then - now


def _patience(entry: CatalogueEntry, *, rules: JobLimits) -> float:
    if entry.gpus or not rules.starvation or not entry.queue or not entry.executed:
        return math.inf
    return int(entry.executed * rules.starvation + 1e-5) - entry.waited


def _move(entry: CatalogueEntry, *, queues: list[list[CatalogueEntry]], rules: JobLimits) -> None:
    target = entry.queue
    if entry.gpus and target < len(rules.quanta) and entry.service + entry.gpus * 1e-5 >= rules.quanta[target]:
        target += 1
    elif _patience(entry, rules=rules) <= 1e-5:
        target, entry.executed, entry.service, entry.waited = 0, 0.0, 0.0, 0.0
    if target != entry.queue:
        queues[entry.queue].remove(entry)
        queues[target].append(entry)
        entry.queue = target


def _first_fit(queues: list[list[CatalogueEntry]], *, gpus: int, shrink: bool) -> list[tuple[CatalogueEntry, int]]:
    plan = []
    for level, queue in enumerate(queues):
        for entry in queue:
            size = entry.job.gpus
            if shrink and level > 0:
                size = max(size // 2, entry.job.min_gpus, 1)
            plan.append((entry, size if size <= gpus else 0))
            gpus -= plan[-1][1]
    return plan


def _planned(queues: list[list[CatalogueEntry]], *, gpus: int, rules: JobLimits) -> list[tuple[CatalogueEntry, int]]:
    plan = _first_fit(queues, gpus=gpus, shrink=False)
    if sum(held == 0 for _, held in plan) > rules.pending_over:
        plan = _first_fit(queues, gpus=gpus, shrink=True)
    if any(held == 0 for _, held in plan):
        return plan
    sizes = dict(plan)
    able = sorted(sizes, key=lambda entry: (entry.queue, entry.job.submit_s))
    while sum(sizes.values()) < gpus:
        growing = [entry for entry in able if sizes[entry] < (entry.job.max_gpus or gpus)]
        best = max(growing, key=lambda entry: entry.gain(sizes[entry]), default=None)
        if best is None or best.gain(sizes[best]) <= 0:
            break
        sizes[best] += 1
    return list(sizes.items())


def _commit(plan: list[tuple[CatalogueEntry, int]], *, now: float, rules: JobLimits) -> None:
    for entry, after in plan:
        if after == entry.gpus:
            continue
        pause = rules.pauses.out_s if after > entry.gpus else rules.pauses.in_s
        entry.resumes = max(entry.resumes, now + pause) if entry.gpus and after else now
        entry.gpus, entry.ends = after, math.inf
        if after:
            entry.ends = entry.resumes + entry.left / entry.rate(after, overhead=rules.pauses.overhead)


def _wakes_in(entry: CatalogueEntry, *, rules: JobLimits) -> float:
    if entry.gpus and entry.queue < len(rules.quanta):
        return max(0, math.ceil((rules.quanta[entry.queue] - entry.service) / entry.gpus - 1e-6))
    patience = _patience(entry, rules=rules)
    return math.ceil(patience - 1e-6) if 1e-5 < patience < math.inf else math.inf
