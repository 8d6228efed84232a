"""Two-dimensional least attained service as its authors describe it, job by job and second by second.

Slow, literal and in whole numbers only: the oracle of the fast one. Sizes and durations are whole, so all times are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kungfu_planning.schedule import ClusterJob


@dataclass
class _Entry:
    job: ClusterJob
    executed: int = 0
    total: int = 0
    queue: int = 0
    runs: bool = False
    waited: int = 0


def reference(
    jobs: tuple[ClusterJob, ...], *, gpus: int, quanta: tuple[int, ...], starvation: float | None
) -> dict[str, int]:
    """When each job ends."""
    queues: list[list[_Entry]] = [[] for _ in (*quanta, math.inf)]
    todo, living, ends = list(jobs), [], {}
    now, jump = 0, math.inf
    while todo or living:
        coming = todo[0].submit_s if todo else math.inf
        ending = min((now + e.job.duration_s - e.total for e in living if e.runs), default=math.inf)
        then = int(min(coming, ending, jump))
        passed, now = then - now, then
        for entry in [e for e in living if e.runs and e.job.duration_s - e.total == passed]:
            ends[entry.job.name] = now
            living.remove(entry)
            queues[entry.queue].remove(entry)
        fresh = [_Entry(job) for job in todo if job.submit_s == now]
        todo = todo[len(fresh) :]
        queues[0].extend(fresh)
        for entry in living:
            _credit(entry, passed, queues=queues, quanta=quanta, starvation=starvation)
        living.extend(fresh)
        _place(queues, gpus=gpus)
        jump = now + min((_crossing(e, quanta=quanta, starvation=starvation) for e in living), default=math.inf)
    return ends


def _credit(entry: _Entry, passed: int, *, queues, quanta, starvation) -> None:
    if entry.runs:
        entry.executed += passed
        entry.total += passed
        if entry.queue < len(quanta) and entry.executed * entry.job.gpus >= quanta[entry.queue]:
            queues[entry.queue].remove(entry)
            entry.queue += 1
            queues[entry.queue].append(entry)
    elif entry.executed > 0:
        entry.waited += passed
        if starvation and entry.queue > 0 and entry.waited >= int(entry.executed * starvation):
            entry.executed = entry.waited = 0
            queues[entry.queue].remove(entry)
            entry.queue = 0
            queues[0].append(entry)


def _place(queues: list[list[_Entry]], *, gpus: int) -> None:
    for index, queue in enumerate(queues):
        for entry in queue:
            entry.runs = entry.job.gpus <= gpus
            gpus -= entry.job.gpus if entry.runs else 0
        queues[index] = [e for e in queue if e.runs] + [e for e in queue if not e.runs]


def _crossing(entry: _Entry, *, quanta, starvation) -> float:
    if entry.runs and entry.queue < len(quanta):
        return max(0, math.ceil((quanta[entry.queue] - entry.executed * entry.job.gpus) / entry.job.gpus))
    if not entry.runs and starvation and entry.queue > 0 and entry.executed > 0:
        patience = int(entry.executed * starvation - entry.waited)
        return patience if patience > 0 else math.inf
    return math.inf
