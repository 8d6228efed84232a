"""One event-driven simulator for every policy.

Time jumps from event to event: an arrival, an end, or a moment that the policy asked to be woken at. At each event
ends come first, then arrivals, then one decision, which is committed at once: so a job is adjusted at most once.
Between events every rate is constant, and progress is settled only for jobs whose GPUs change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kungfu.errors import InternalError, UsageError
from kungfu.schedule.job import Job, arranged
from kungfu.schedule.outcome.ledger import Result, close_books, note_event, open_books
from kungfu.schedule.performing import Books, Pauses, carry_out, end_jobs, nothing_done
from kungfu.schedule.state import Ints, Policy, State, read_only, tabulated

__all__ = ["Watch", "simulate"]

Watch = Callable[[State], None]
_EVENTS_AT_ONE_INSTANT = 10_000
_NOBODY: Ints = np.empty(0, dtype=np.int64)


def simulate(
    jobs: Sequence[Job], *, gpus: int, policy: Policy[Any], pauses: Pauses | None = None, watch: Watch | None = None
) -> Result:
    """Run a trace through a policy on an imagined cluster of ``gpus`` equal GPUs.

    Args:
        jobs: sorted by arrival, names unique, none larger than the cluster.
        gpus: GPUs of the cluster, at least 1; placement is by counting, no topology.
        policy: what decides at every event.
        pauses: what adjusting a running job costs; nothing by default.
        watch: called after each event with the state as committed (its vectors are live views: copy what you keep).

    Returns:
        When each job started and ended, what it was given, and how full the cluster was over time.

    Raises:
        UsageError: for a trace that breaks a rule above, or a plan that gives away more GPUs than there are.
        InternalError: if the policy leaves jobs waiting for ever on an idle cluster, or time stands still.

    Cost: one decision an event; memory 8 bytes for each different curve and GPU.

    >>> from kungfu.schedule.rigid import fifo
    >>> result = simulate([Job("a", 0, 2, 10.0), Job("b", 1, 2, 5.0)], gpus=2, policy=fifo())
    >>> [float(end) for end in result.finish_s]
    [10.0, 15.0]
    """
    jobs = arranged(jobs, gpus=gpus)
    workload = tabulated(jobs, gpus=gpus)
    books = Books(nothing_done(workload), open_books(len(jobs)), pauses or Pauses())
    state = State(0.0, gpus, workload, read_only(books.progress), _NOBODY, _NOBODY, _NOBODY)
    memory, wake_s, submitted, repeats = policy.begin(workload, gpus), math.inf, 0, 0
    while (moment := _next_moment(state, submitted=submitted, wake_s=wake_s)) < math.inf:
        repeats = _count_repeats(repeats, state=state, moment=moment)
        state = _happen(state, books=books, now_s=moment, submitted=submitted)
        submitted += len(state.arrived)
        plan, memory = policy.decide(state, memory)
        wake_s = plan.wake_s
        state = _settled(state, books=books, changed=carry_out(plan, state=state, books=books))
        if watch is not None:
            watch(state)
    if len(state.pending):
        raise InternalError(f"{policy.name} leaves {len(state.pending)} jobs waiting for ever on an idle cluster")
    return close_books(books.ledger, jobs=jobs, gpus=gpus, policy=policy.name)


def _next_moment(state: State, *, submitted: int, wake_s: float) -> float:
    arrivals = state.workload.submit_s
    arrival_s = float(arrivals[submitted]) if submitted < len(arrivals) else math.inf
    end_s = float(state.progress.end_s[state.running].min()) if len(state.running) else math.inf
    return max(state.now_s, min(arrival_s, end_s, wake_s))


def _count_repeats(repeats: int, *, state: State, moment: float) -> int:
    if moment > state.now_s:
        return 0
    if repeats > _EVENTS_AT_ONE_INSTANT:
        raise InternalError(f"time stands still at {moment} s: the policy asks to be woken again and again")
    return repeats + 1


def _happen(state: State, *, books: Books, now_s: float, submitted: int) -> State:
    """Ends, then arrivals: the state that the policy decides on."""
    running, pending, arrived = state.running, state.pending, _NOBODY
    ended = running[state.progress.end_s[running] <= now_s]
    if len(ended):
        end_jobs(books, jobs=ended, now_s=now_s)
        running = running[state.progress.gpus[running] > 0]
    submit_s = state.workload.submit_s
    if submitted < len(submit_s) and submit_s[submitted] <= now_s:
        arrived = np.arange(submitted, np.searchsorted(submit_s, now_s, side="right"), dtype=np.int64)
        pending = np.concatenate((pending, arrived))
    return replace(state, now_s=now_s, running=running, pending=pending, arrived=arrived)


def _settled(state: State, *, books: Books, changed: Ints) -> State:
    """The state after the plan was carried out."""
    held = state.progress.gpus
    if len(changed):
        stopped = changed[held[changed] == 0]
        running = np.union1d(state.running[held[state.running] > 0], changed[held[changed] > 0])
        pending = state.pending[held[state.pending] == 0]
        state = replace(state, running=running, pending=np.union1d(pending, stopped) if len(stopped) else pending)
    busy = int(held[state.running].sum())
    if busy > state.gpus:
        raise UsageError(f"the policy gave away {busy} GPUs of {state.gpus}: a plan must not exceed the cluster")
    note_event(books.ledger, now_s=state.now_s, busy=busy, pending=len(state.pending))
    return state
