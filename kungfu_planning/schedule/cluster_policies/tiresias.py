"""Tiresias, rigid and elastic: preemptive least attained service in GPU seconds.

At every event all unfinished jobs are scanned, queue 0 first. A job gets the GPUs that its user requested if that many
GPUs are left; otherwise it is preempted or skipped. The scan then continues. Gu et al., *Tiresias*, NSDI 2019.

Elastic-Tiresias shrinks jobs while many wait (rule R1) and grows them while none waits (rule R2). Wu et al., 2019,
section 6.2. Both rules modify one plan, which is applied once, so a job that R1 shrinks and R2 grows is adjusted
once. The plan starts from the users' requests at every event: a shrunk job returns to the requested size when few wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from kungfu.errors import UsageError
from kungfu_planning.schedule.cluster_policies.greedy import Climbers, Ladders, build_ladders, fill_gpus, relative_gain
from kungfu_planning.schedule.cluster_policies.rigid import first_fit_mask
from kungfu_planning.schedule.cluster_policies.tiresias_queues import (
    PAPER_QUANTA,
    Levels,
    Queues,
    advanced_queues,
    empty_queues,
    next_crossing_s,
    running_first,
)
from kungfu_planning.schedule.state import ClusterPolicy, Ints, SchedulePlan, State, Workload

Preparation = TypeVar("Preparation")


@dataclass(frozen=True)
class QueuedMemory(Generic[Preparation]):
    """The memory of a queued policy: the queues after the last decision, and the value that ``prepare`` returned."""

    queues: Queues
    prepared: Preparation


def tiresias(
    *, quanta: tuple[float, ...] = PAPER_QUANTA, starvation: float | None = None
) -> ClusterPolicy[QueuedMemory[None]]:
    """Tiresias: least attained service in two dimensions (GPUs and seconds), with discrete queues.

    Args:
        quanta: GPU seconds after which a job moves one queue down, rising; the papers' 10,000 and 200,000 by default.
        starvation: the factor K: a preempted job that has waited K times as long as it ran moves to queue 0;
            ``None``, the default, never promotes.

    Raises:
        UsageError: The quanta do not increase, or the factor is not above 0.
    """
    return queued("tiresias", levels=Levels(quanta, starvation), prepare=lambda _workload: None, placing=_rigid)


def queued(
    name: str,
    *,
    levels: Levels,
    prepare: Callable[[Workload], Preparation],
    placing: Callable[[State, Queues, Preparation], Ints],
) -> ClusterPolicy[QueuedMemory[Preparation]]:
    """A policy with multi-level queues; ``placing`` returns the GPUs that each job gets, in the order of the queues."""

    def begin(workload: Workload, _gpus: int) -> QueuedMemory[Preparation]:
        return QueuedMemory(empty_queues(), prepare(workload))

    def decide(state: State, memory: QueuedMemory[Preparation]) -> tuple[SchedulePlan, QueuedMemory[Preparation]]:
        queues = advanced_queues(memory.queues, state=state, levels=levels)
        held = placing(state, queues, memory.prepared)
        wake_s = next_crossing_s(queues, held=held, levels=levels)
        return SchedulePlan(queues.job, held, wake_s), replace(memory, queues=running_first(queues, runs=held > 0))

    return ClusterPolicy(name, begin, decide)


def placed_first_fit(sizes: Ints, *, gpus: int) -> Ints:
    """The size of each request that first fit serves, and 0 for each request that it skips."""
    return np.where(first_fit_mask(sizes, free=gpus), sizes, 0)


def _rigid(state: State, queues: Queues, _prepared: None) -> Ints:
    return placed_first_fit(state.workload.gpus[queues.job], gpus=state.gpus)


def elastic_tiresias(
    *, pending_over: int = 0, quanta: tuple[float, ...] = PAPER_QUANTA, starvation: float | None = None
) -> ClusterPolicy[QueuedMemory[Ladders]]:
    """Tiresias with jobs that shrink and grow.

    R1: if a plan with the sizes that users requested leaves more than ``pending_over`` jobs waiting, plan again with
    every job outside queue 0 at half its request (rounded down, but at least 1 and its ``min_gpus``). R2: if no job
    waits in the plan and GPUs are left, give one at a time to the job with the largest ``(t(p+1) - t(p)) / t(p)``
    (ties: the higher queue, then the earlier arrival), but no job gets more than ``max_gpus`` or a GPU without gain.
    Jobs with ``min_gpus`` = ``max_gpus`` = ``gpus`` are not changed.

    Args:
        pending_over: N of rule R1, at least 0. The paper does not state N; 0 shrinks jobs as soon as a job waits.
        quanta: see ``tiresias``.
        starvation: see ``tiresias``.
    """
    if pending_over < 0:
        raise UsageError(f"pending_over is {pending_over}; a number of waiting jobs is at least 0")

    def placing(state: State, queues: Queues, ladders: Ladders) -> Ints:
        return _placed(state, queues=queues, ladders=ladders, pending_over=pending_over)

    return queued("elastic-tiresias", levels=Levels(quanta, starvation), prepare=_ladders, placing=placing)


def halved(workload: Workload, *, jobs: Ints) -> Ints:
    """The GPUs of each job under R1: half of its request, but at least 1 and at least its minimum."""
    return np.maximum(workload.gpus[jobs] // 2, workload.min_gpus[jobs])


def _ladders(workload: Workload) -> Ladders:
    """The `Ladders` of n jobs in 2n rows: job j grows from its request in row j, from half the request in n + j."""
    half = halved(workload, jobs=np.arange(len(workload.gpus)))
    return build_ladders(
        workload.rates,
        kind=np.tile(workload.kind, 2),
        fewest=np.concatenate((workload.gpus, half)),
        most=np.tile(workload.max_gpus, 2),
        gain=relative_gain,
    )


def _placed(state: State, *, queues: Queues, ladders: Ladders, pending_over: int) -> Ints:
    asked = state.workload.gpus[queues.job]
    held = placed_first_fit(asked, gpus=state.gpus)
    shrinks = np.zeros(len(held), dtype=np.bool_)
    if int((held == 0).sum()) > pending_over:
        shrinks = queues.level > 0
        held = placed_first_fit(np.where(shrinks, halved(state.workload, jobs=queues.job), asked), gpus=state.gpus)
    if len(held) and held.min() > 0 and int(held.sum()) < state.gpus:
        return _grown(state, queues=queues, held=held, ladders=ladders, shrinks=shrinks)
    return held


def _grown(state: State, *, queues: Queues, held: Ints, ladders: Ladders, shrinks: npt.NDArray[np.bool_]) -> Ints:
    """The sizes after rule R2 grows the planned sizes; the greedy search begins at the jobs' present GPUs."""
    order = np.lexsort((queues.job, queues.level))
    jobs = queues.job[order]
    row = ladders.row[jobs + shrinks[order] * len(state.workload.gpus)]
    start = np.clip(state.progress.gpus[jobs], held[order], state.workload.max_gpus[jobs])
    grown = np.empty_like(held)
    grown[order] = fill_gpus(Climbers(ladders.steps, row, np.ones(len(jobs))), start=start, total=state.gpus)
    return grown
