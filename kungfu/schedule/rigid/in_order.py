"""First in, first out, strictly or with smaller jobs slipping past one that does not fit."""

from __future__ import annotations

from kungfu.schedule.rigid.fitting import first_fit_mask, prefix_that_fits
from kungfu.schedule.state import Ints, Plan, Policy, State, stateless

__all__ = ["fifo", "first_fit", "free_gpus"]


def free_gpus(state: State) -> int:
    """GPUs that no running job holds."""
    return state.gpus - int(state.progress.gpus[state.running].sum())


def fifo() -> Policy[None]:
    """Start the job at the head of the line while it fits; nobody overtakes it. No preemption.

    Cost: amortised constant work a job beside one prefix sum over those that wait.
    """
    return stateless("fifo", decide=_fifo)


def first_fit() -> Policy[None]:
    """Start, in order of arrival, every waiting job that fits into what is left. No preemption.

    The head of the line can starve behind small jobs; that is what backfilling mends.
    """
    return stateless("first-fit", decide=_first_fit)


def _fifo(state: State) -> Plan:
    head = state.pending[: state.gpus]  # no more jobs than GPUs can start at once
    sizes = state.workload.gpus[head]
    return _starting(state, head[: prefix_that_fits(sizes, free=free_gpus(state))])


def _first_fit(state: State) -> Plan:
    sizes = state.workload.gpus[state.pending]
    return _starting(state, state.pending[first_fit_mask(sizes, free=free_gpus(state))])


def _starting(state: State, jobs: Ints) -> Plan:
    return Plan(jobs, state.workload.gpus[jobs])
