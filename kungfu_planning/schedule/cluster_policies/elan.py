"""E-FIFO and E-BF: elastic first in first out, and elastic backfilling. Xie et al., *Elan*, 2020, section VI-C.

A job is never admitted if it and the running jobs on their fewest GPUs exceed the cluster. Else it is admitted if its
fewest GPUs are free, or if its admission does not increase the average completion time. (The paper requires more free
GPUs than the job's fewest; then one idle GPU could never start a 1-GPU job.) The paper does not define how to predict
the average. Here the rest of the schedule is simulated twice without further arrivals: with admission now, and with
admission after the first completion that frees the job's fewest GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kungfu.errors import UsageError
from kungfu_planning.schedule.cluster_policies.elan_forecast import (
    EstimatedFuture,
    ForecastContext,
    RunningJobs,
    allocated,
    joined,
    prepared,
    running_now,
)
from kungfu_planning.schedule.cluster_policies.elan_future import ExactFuture
from kungfu_planning.schedule.cluster_policies.elan_marginal import MarginalFuture
from kungfu_planning.schedule.state import ClusterPolicy, Ints, SchedulePlan, State

_SHARED_TWICE_UP_TO = 128  # beyond, first-order decisions take a third of the time; the mean JCT is up to 5 % longer


@dataclass(frozen=True)
class _ForecastLimits:
    """Limits on a decision: the most running jobs simulated exactly, and the most jobs tried behind a refused head."""

    exact_up_to: int
    depth: int

    def __post_init__(self) -> None:
        if self.exact_up_to < 0 or self.depth < 0:
            raise UsageError(f"exact_up_to is {self.exact_up_to} and depth {self.depth}: both must be at least 0")


def elastic_fifo(*, exact_up_to: int = 64) -> ClusterPolicy[ForecastContext]:
    """Admits jobs from the head of the queue until one is refused, then shares all GPUs among the running jobs.

    Jobs run on their ``min_gpus`` to ``max_gpus``; shares are computed again at every event.

    Args:
        exact_up_to: the largest number of running jobs whose future is simulated exactly for an admission. The future
            of more jobs is estimated, and from 128 jobs on only to first order (`MarginalFuture`). A large value
            makes every decision exact, and the simulation of a large cluster slow.
    """
    return ClusterPolicy("efifo", prepared, _deciding(_ForecastLimits(exact_up_to, depth=0)))


def elastic_backfill(*, exact_up_to: int = 16, depth: int = 8) -> ClusterPolicy[ForecastContext]:
    """Like ``elastic_fifo``, but later jobs may start after a refused head if they do not delay the head.

    A later job must pass the same admission rule, and the head's fewest GPUs must not become free later with the job
    than without that job.

    Args:
        exact_up_to: see ``elastic_fifo``.
        depth: the maximum number of later jobs tried at an event, in order of arrival; only jobs that could fit count.
    """
    return ClusterPolicy("ebf", prepared, _deciding(_ForecastLimits(exact_up_to, depth)))


def _deciding(limits: _ForecastLimits) -> Callable[[State, ForecastContext], tuple[SchedulePlan, ForecastContext]]:
    def decide(state: State, context: ForecastContext) -> tuple[SchedulePlan, ForecastContext]:
        running = Admission(running_now(state, context=context), context=context, exact_up_to=limits.exact_up_to)
        shared = _admitted(running, pending=state.pending, depth=limits.depth).shared
        return SchedulePlan(shared.jobs, shared.held), context

    return decide


def _admitted(running: Admission, *, pending: Ints, depth: int) -> Admission:
    for place, job in enumerate(pending.tolist()):
        if not running.admits(job):
            return _overtaken(running, head=job, behind=pending[place + 1 :], depth=depth)
        running = running.joined(job)
    return running


def _overtaken(running: Admission, *, head: int, behind: Ints, depth: int) -> Admission:
    """Admits later jobs that neither delay the refused head of the queue nor raise the mean completion time."""
    fitting = behind[running.context.workload.min_gpus[behind] <= running.spare]
    for job in fitting[:depth].tolist():
        # In this order: most jobs are refused because running jobs would lose more, and few would delay the head.
        if running.admits(job) and not running.delays(job, head=head):
            running = running.joined(job)
    return running


class Admission:
    """The running jobs, and the test whether a further job may start.

    Args:
        running: the running jobs, with their present GPUs.
        context: the curves of the jobs, and the size of the cluster.
        exact_up_to: the largest number of running jobs whose future is simulated exactly; futures of more jobs are
            estimated.
    """

    def __init__(self, running: RunningJobs, *, context: ForecastContext, exact_up_to: int) -> None:
        self._running, self.context, self._exact_up_to = running, context, exact_up_to
        # GPUs left if every job had its fewest.
        self.spare = context.gpus - int(context.workload.min_gpus[running.jobs].sum())
        self._free = context.gpus - int(running.held.sum())

    def has_room(self, job: int) -> bool:
        """True if ``job`` and the running jobs, each on its fewest GPUs, fit into the cluster."""
        return self.context.fewest(job) <= self.spare

    def admits(self, job: int) -> bool:
        """True if ``job`` may start now, by the admission rule of this module."""
        if not self.has_room(job):
            return False
        # If the job's fewest GPUs are free, no running job loses GPUs. Else compare the two futures.
        return self.context.fewest(job) <= self._free or self._future.pays(job)

    def delays(self, job: int, *, head: int) -> bool:
        """True if starting ``job`` now delays the time at which ``head`` can start on its fewest GPUs."""
        return self._future.delays(job, head=head)

    def joined(self, job: int) -> Admission:
        """The `Admission` after ``job`` has started on its fewest GPUs."""
        running = joined(self._running, job=job, context=self.context)
        return Admission(running, context=self.context, exact_up_to=self._exact_up_to)

    @cached_property
    def shared(self) -> RunningJobs:
        """The running jobs with all GPUs shared among them."""
        return allocated(self._running, context=self.context)

    @cached_property
    def _future(self) -> ExactFuture | EstimatedFuture | MarginalFuture:
        running = len(self._running.jobs)
        if running < self._exact_up_to:
            return ExactFuture(self._running, context=self.context)
        future = EstimatedFuture if running < _SHARED_TWICE_UP_TO else MarginalFuture
        return future(self.shared, context=self.context)
