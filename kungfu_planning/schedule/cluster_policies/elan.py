"""E-FIFO and E-BF: elastic first in first out, and elastic backfilling. Xie et al., *Elan*, 2020, section VI-C.

A job is never admitted beyond the point where all jobs have only their fewest GPUs. It is admitted if its fewest GPUs
are free (the paper says fewer than the free ones; then one idle GPU could never start a 1-GPU job), or if that does
not increase the average completion time. The paper does not say how to determine that: here the rest of the schedule is
simulated twice without further arrivals, admitting now against waiting for the first completion after which the fewest
GPUs are free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kungfu.errors import UsageError
from kungfu_planning.schedule.cluster_policies.elan_forecast import (
    ForecastContext,
    RunningJobs,
    allocated,
    estimated_opening,
    estimated_sum_of_ends_s,
    joined,
    left_s,
    opening,
    prepared,
    running_now,
    sum_of_ends_s,
)
from kungfu_planning.schedule.state import ClusterPolicy, SchedulePlan, State


@dataclass(frozen=True)
class _ForecastLimits:
    """Bounds on the cost of a decision: running jobs forecast exactly, later jobs tried after a refused head."""

    exact_up_to: int
    depth: int

    def __post_init__(self) -> None:
        if self.exact_up_to < 0 or self.depth < 0:
            raise UsageError(f"exact_up_to is {self.exact_up_to} and depth {self.depth}: both must be at least 0")


def elastic_fifo(*, exact_up_to: int = 64) -> ClusterPolicy[ForecastContext]:
    """Admit from the head of the queue until the first refusal, then share all GPUs among the jobs that run.

    Jobs run on their ``min_gpus`` to ``max_gpus``; shares are computed again at every event.

    Args:
        exact_up_to: sets of running jobs up to this many jobs are forecast exactly when an admission is judged, larger
            ones by an estimate (see ``admission``). A large number makes every decision exact, and a large cluster
            slow.
    """
    return ClusterPolicy("efifo", prepared, _deciding(_ForecastLimits(exact_up_to, depth=0)))


def elastic_backfill(*, exact_up_to: int = 64, depth: int = 8) -> ClusterPolicy[ForecastContext]:
    """Like ``elastic_fifo``, but after a refused head later jobs may start if that does not delay the head.

    A later job must pass the same admission rule, and the head's fewest GPUs must come free no later with it than
    without it.

    Args:
        exact_up_to: see ``elastic_fifo``.
        depth: at most this many of the later jobs that could fit are tried at an event, in order of arrival.
    """
    return ClusterPolicy("ebf", prepared, _deciding(_ForecastLimits(exact_up_to, depth)))


def _deciding(limits: _ForecastLimits) -> Callable[[State, ForecastContext], tuple[SchedulePlan, ForecastContext]]:
    def decide(state: State, context: ForecastContext) -> tuple[SchedulePlan, ForecastContext]:
        running = allocated(_admitted(state, context=context, limits=limits), context=context)
        return SchedulePlan(running.jobs, running.held), context

    return decide


def _admitted(state: State, *, context: ForecastContext, limits: _ForecastLimits) -> RunningJobs:
    running = running_now(state)
    for place, job in enumerate(state.pending.tolist()):
        if not admissible(running, job=job, context=context, exact_up_to=limits.exact_up_to):
            return _overtaken(state, running=running, head=place, context=context, limits=limits)
        running = joined(running, job=job, context=context)
    return running


def _overtaken(
    state: State, *, running: RunningJobs, head: int, context: ForecastContext, limits: _ForecastLimits
) -> RunningJobs:
    """The running jobs, and those after a refused head that neither delay it nor raise the mean completion time."""
    blocked, rest = int(state.pending[head]), state.pending[head + 1 :]
    rest = rest[context.workload.min_gpus[rest] <= spare_gpus(running, context=context)]
    joining = running
    for job in rest[: limits.depth].tolist():
        if admissible(joining, job=job, context=context, exact_up_to=limits.exact_up_to) and does_not_delay(
            joining, job=job, head=blocked, context=context, exact_up_to=limits.exact_up_to
        ):
            joining = joined(joining, job=job, context=context)
    return joining


_ROUNDING = 1 + 1e-9
"""Two futures of equal length are equally good, whatever the rounding of their sums."""


def spare_gpus(running: RunningJobs, *, context: ForecastContext) -> int:
    """GPUs that would be left if every job had its fewest."""
    return context.gpus - int(context.workload.min_gpus[running.jobs].sum())


def admissible(running: RunningJobs, *, job: int, context: ForecastContext, exact_up_to: int) -> bool:
    """True if ``job`` may start now.

    Args:
        running: the running jobs, with the GPUs they hold.
        job: the waiting job.
        context: curves and size of the cluster.
        exact_up_to: futures of sets of running jobs of up to this many jobs are played exactly, those of larger ones
            estimated.
    """
    fewest = int(context.workload.min_gpus[job])
    # Even with every running job on its fewest GPUs there is no room.
    if fewest > spare_gpus(running, context=context):
        return False
    # Its fewest GPUs are free: no running job has to give any.
    if fewest <= context.gpus - int(running.held.sum()):
        return True
    # Running jobs would have to shrink for it: compare the two futures.
    if len(running.jobs) < exact_up_to:
        return _pays(running, job=job, fewest=fewest, context=context)
    return _seems_to_pay(running, job=job, fewest=fewest, context=context)


def _pays(running: RunningJobs, *, job: int, fewest: int, context: ForecastContext) -> bool:
    """True if the sum of completion times is no larger if ``job`` starts now than if it waits."""
    wait = opening(running, wanted=fewest, context=context)
    later = joined(wait.running, job=job, context=context)
    waiting_s = wait.ends_s + wait.time_s * len(later.jobs) + sum_of_ends_s(later, context=context)
    return sum_of_ends_s(joined(running, job=job, context=context), context=context) <= waiting_s * _ROUNDING


def _seems_to_pay(running: RunningJobs, *, job: int, fewest: int, context: ForecastContext) -> bool:
    """The same by estimate: both futures share the GPUs now and at the opening, and not again."""
    wait = estimated_opening(running, wanted=fewest, context=context)
    later = allocated(joined(wait.running, job=job, context=context), context=context)
    waiting_s = wait.ends_s + wait.time_s * len(later.jobs) + float(left_s(later, context=context).sum())
    sooner = joined(running, job=job, context=context)
    return estimated_sum_of_ends_s(sooner, again_s=wait.time_s, context=context) <= waiting_s * _ROUNDING


def does_not_delay(running: RunningJobs, *, job: int, head: int, context: ForecastContext, exact_up_to: int) -> bool:
    """True if ``head`` finds its fewest GPUs free no later if ``job`` starts now."""
    wanted = int(context.workload.min_gpus[head])
    opens = opening if len(running.jobs) < exact_up_to else estimated_opening
    limit_s = opens(running, wanted=wanted, context=context).time_s
    return (
        opens(joined(running, job=job, context=context), wanted=wanted, context=context).time_s <= limit_s * _ROUNDING
    )
