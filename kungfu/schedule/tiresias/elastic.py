"""Elastic-Tiresias: shrink while many wait (R1), grow while nobody does (R2). Wu et al., 2019, section 6.2.

Both rules only shape one plan, which is committed once, so a job that R1 shrinks and R2 grows is adjusted once.
The plan is made from the user's requests at every event: a shrunk job returns to its size when the crowd has gone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kungfu.errors import UsageError
from kungfu.schedule.greedy import Climbers, Ladders, build_ladders, fill, relative_gain
from kungfu.schedule.state import Ints, Policy, State, Workload
from kungfu.schedule.tiresias.policy import QueuedMemory, placed_first_fit, queued
from kungfu.schedule.tiresias.queues import PAPER_QUANTA, Levels, Queues

__all__ = ["elastic_tiresias", "halved"]


def elastic_tiresias(
    *, pending_over: int = 0, quanta: tuple[float, ...] = PAPER_QUANTA, starvation: float | None = None
) -> Policy[QueuedMemory[Ladders]]:
    """Tiresias whose jobs shrink and grow.

    R1: if a plan with the sizes that users asked for leaves more than ``pending_over`` jobs waiting, plan anew with
    every job outside queue 0 at half its size (rounded down, at least 1 and at least its ``min_gpus``). R2: if nobody
    waits in the plan and GPUs are left, give one at a time to the job with the largest ``(t(p+1) - t(p)) / t(p)``,
    ties to the higher queue, then the earlier arrival; none beyond ``max_gpus`` or without gain.
    Inelastic jobs (fewest = most = asked) are left alone.

    Args:
        pending_over: N of rule R1, at least 0. The paper does not give it; 0 shrinks as soon as anybody waits.
        quanta: see ``tiresias``.
        starvation: see ``tiresias``.
    """
    if pending_over < 0:
        raise UsageError(f"pending_over is {pending_over}; a number of waiting jobs is at least 0")

    def placing(state: State, queues: Queues, ladders: Ladders) -> Ints:
        return _placed(state, queues=queues, ladders=ladders, pending_over=pending_over)

    return queued("elastic-tiresias", levels=Levels(quanta, starvation), prepare=_ladders, placing=placing)


def halved(workload: Workload, *, jobs: Ints) -> Ints:
    """What R1 leaves a job: half of what its user asked for, at least 1 and at least its fewest."""
    return np.maximum(workload.gpus[jobs] // 2, workload.min_gpus[jobs])


def _ladders(workload: Workload) -> Ladders:
    """For n jobs 2n ladders: job j grows from the user's size on ladder j, from half of it on ladder n + j."""
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
    """Rule R2 from the planned sizes, found from what the jobs hold now."""
    order = np.lexsort((queues.job, queues.level))
    jobs = queues.job[order]
    row = ladders.row[jobs + shrinks[order] * len(state.workload.gpus)]
    start = np.clip(state.progress.gpus[jobs], held[order], state.workload.max_gpus[jobs])
    grown = np.empty_like(held)
    grown[order] = fill(Climbers(ladders.steps, row, np.ones(len(jobs))), start=start, total=state.gpus)
    return grown
