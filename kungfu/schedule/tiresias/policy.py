"""Tiresias with rigid jobs: preemptive least attained service in GPU seconds.

At every event all living jobs are scanned, queue 0 first; each takes the GPUs its user asked for when they are left,
is preempted or passed over when not, and the scan goes on behind it. Gu et al., *Tiresias*, NSDI 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from kungfu.schedule.rigid.fitting import first_fit_mask
from kungfu.schedule.state import Ints, Plan, Policy, State, Workload
from kungfu.schedule.tiresias.queues import (
    PAPER_QUANTA,
    Levels,
    Queues,
    advanced,
    empty_queues,
    next_crossing_s,
    running_first,
)

__all__ = ["QueuedMemory", "placed_first_fit", "queued", "tiresias"]

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class QueuedMemory(Generic[Prepared]):
    """The queues as the last decision left them, and what was prepared once for all decisions."""

    queues: Queues
    prepared: Prepared


def tiresias(
    *, quanta: tuple[float, ...] = PAPER_QUANTA, starvation: float | None = None
) -> Policy[QueuedMemory[None]]:
    """Two-dimensional least attained service with discrete queues.

    Args:
        quanta: GPU seconds after which a job sinks a level, rising; the papers' 10,000 and 200,000 by default.
        starvation: a preempted job that has waited this many times as long as it had run rises to queue 0;
            ``None``, the default, never promotes.

    Raises:
        UsageError: for quanta that do not rise, or a factor that is not above 0.
    """
    return queued("tiresias", levels=Levels(quanta, starvation), prepare=lambda _workload: None, placing=_rigid)


def queued(
    name: str,
    *,
    levels: Levels,
    prepare: Callable[[Workload], Prepared],
    placing: Callable[[State, Queues, Prepared], Ints],
) -> Policy[QueuedMemory[Prepared]]:
    """A policy on these queues: ``placing`` says how many GPUs each job gets, in scan order."""

    def begin(workload: Workload, _gpus: int) -> QueuedMemory[Prepared]:
        return QueuedMemory(empty_queues(), prepare(workload))

    def decide(state: State, memory: QueuedMemory[Prepared]) -> tuple[Plan, QueuedMemory[Prepared]]:
        queues = advanced(memory.queues, state=state, levels=levels)
        held = placing(state, queues, memory.prepared)
        wake_s = next_crossing_s(queues, held=held, levels=levels)
        return Plan(queues.job, held, wake_s), replace(memory, queues=running_first(queues, runs=held > 0))

    return Policy(name, begin, decide)


def placed_first_fit(sizes: Ints, *, gpus: int) -> Ints:
    """The size of each request that first fit serves, 0 for the others."""
    return np.where(first_fit_mask(sizes, free=gpus), sizes, 0)


def _rigid(state: State, queues: Queues, _prepared: None) -> Ints:
    return placed_first_fit(state.workload.gpus[queues.job], gpus=state.gpus)
