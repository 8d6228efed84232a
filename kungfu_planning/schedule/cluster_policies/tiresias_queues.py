"""The multi-level queue: the place of each job, demotions, and promotions after starvation.

A job enters the tail of queue 0. Once it has received ``quanta[q]`` GPU seconds it moves to the tail of queue q+1,
one level per event. A preempted job that has waited ``starvation`` times as long as it ran moves to the tail of
queue 0, and its counters restart from 0. Within a queue, running jobs are before waiting jobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kungfu.errors import UsageError
from kungfu_planning.schedule.state import Floats, Ints, State

PAPER_QUANTA = (10_000.0, 200_000.0)
"""The quanta of both papers: GPU seconds after which a job leaves queue 0 and queue 1."""


@dataclass(frozen=True)
class Levels:
    """The limits at which jobs move from queue to queue.

    Args:
        quanta: GPU seconds, increasing; there is one more queue than quanta.
        starvation: K, above 0; a job that has waited K times as long as it ran is promoted. ``None`` never promotes.
    """

    quanta: tuple[float, ...] = PAPER_QUANTA
    starvation: float | None = None

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip((0.0, *self.quanta), self.quanta, strict=False))
        if not rising:
            raise UsageError(f"quanta {self.quanta} must rise from above 0 GPU seconds")
        if self.starvation is not None and not 0 < self.starvation < math.inf:
            raise UsageError(
                f"starvation factor {self.starvation} must be above 0 and finite; leave it out for no promotion"
            )


@dataclass(frozen=True)
class Queues:
    """All unfinished jobs in scan order, queue 0 first, as vectors with an entry per job.

    Attributes:
        job: The index of each job.
        level: The queue of each job.
        service: The GPU seconds of each job since its last promotion.
        executed_s: The seconds for which each job ran since that promotion.
        waited_s: The seconds for which each job was preempted since that promotion.
        now_s: The time up to which service and seconds are counted.
    """

    job: Ints
    level: Ints
    service: Floats
    executed_s: Floats
    waited_s: Floats
    now_s: float


def empty_queues() -> Queues:
    """The queues at time 0, without jobs."""
    nothing = np.empty(0)
    return Queues(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), nothing, nothing, nothing, 0.0)


def advanced_queues(queues: Queues, *, state: State, levels: Levels) -> Queues:
    """The queues at the state's time: without ended jobs, with counts up to now, with new jobs, after all due moves."""
    queues = _chosen(queues, which=~state.progress.finished[queues.job])
    queues = _credited(queues, state=state)
    queues = _entered(queues, arrived=state.arrived)
    return _moved(queues, state=state, levels=levels)


def running_first(queues: Queues, *, runs: npt.NDArray[np.bool_]) -> Queues:
    """The queues after running jobs have gone before other jobs within each queue, otherwise in unchanged order."""
    rank = 2 * queues.level + ~runs
    if (rank[1:] >= rank[:-1]).all():
        return queues
    return _chosen(queues, which=np.argsort(rank, kind="stable"))


_EARLY_S, _LATE_S = 1e-6, 1e-5
"""Tolerances for rounding in sums of times: a wake-up may be early by the first, and a limit counts as reached if less
than the second is missing. The second is larger, so that the wake-up for a move always finds the move due.
"""


def next_crossing_s(queues: Queues, *, held: Ints, levels: Levels) -> float:
    """The time of the next demotion or promotion, a whole number of seconds after ``queues.now_s``; infinite if none.

    Seconds are rounded up, as in the published simulator, which uses whole seconds.
    """
    # The next job to be demoted, at the rate at which it receives service.
    sinks = (held > 0) & (queues.level < len(levels.quanta))
    left_s = (_limits(levels)[queues.level[sinks]] - queues.service[sinks]) / held[sinks]
    in_s = _whole_s(left_s).min(initial=math.inf)
    # The next job to be promoted, if promotion is on.
    if levels.starvation is not None:
        rises = (held == 0) & (queues.level > 0) & (queues.executed_s > 0)
        left_s = _patience_s(queues, levels.starvation)[rises] - queues.waited_s[rises]
        in_s = min(in_s, _whole_s(left_s[left_s > _LATE_S]).min(initial=math.inf))
    return queues.now_s + float(in_s)


def _whole_s(left_s: Floats) -> Floats:
    """The whole seconds until each move; 0 for a job that has used up two quanta, as it moves once per event."""
    whole: Floats = np.where(left_s <= _LATE_S, 0.0, np.maximum(np.ceil(left_s - _EARLY_S), 1.0))
    return whole


def _patience_s(queues: Queues, starvation: float) -> Floats:
    """The longest wait of each job before its promotion, in whole seconds as in the published simulator."""
    patience_s: Floats = np.floor(queues.executed_s * starvation + _LATE_S)
    return patience_s


def _chosen(queues: Queues, *, which: Ints | npt.NDArray[np.bool_]) -> Queues:
    return Queues(
        queues.job[which],
        queues.level[which],
        queues.service[which],
        queues.executed_s[which],
        queues.waited_s[which],
        queues.now_s,
    )


def _credited(queues: Queues, *, state: State) -> Queues:
    elapsed_s = state.now_s - queues.now_s
    held = state.progress.gpus[queues.job]
    waits = (held == 0) & (queues.executed_s > 0)
    return replace(
        queues,
        service=queues.service + held * elapsed_s,
        executed_s=queues.executed_s + (held > 0) * elapsed_s,
        waited_s=queues.waited_s + waits * elapsed_s,
        now_s=state.now_s,
    )


def _entered(queues: Queues, *, arrived: Ints) -> Queues:
    if not len(arrived):
        return queues
    # After all jobs of queue 0.
    at = int(np.searchsorted(queues.level, 0, side="right"))
    fresh = np.zeros(len(arrived))
    return Queues(
        np.insert(queues.job, at, arrived),
        np.insert(queues.level, at, np.zeros_like(arrived)),
        np.insert(queues.service, at, fresh),
        np.insert(queues.executed_s, at, fresh),
        np.insert(queues.waited_s, at, fresh),
        queues.now_s,
    )


def _moved(queues: Queues, *, state: State, levels: Levels) -> Queues:
    """The queues after all due moves: a job moves down one level, or up to queue 0."""
    held = state.progress.gpus[queues.job]
    # A job is demoted if it runs, and has exhausted the quantum of its queue.
    sinks = (held > 0) & (queues.service + held * _LATE_S >= _limits(levels)[queues.level])
    # A job is promoted if it is preempted, and has waited for its longest wait.
    rises = np.zeros(len(held), dtype=np.bool_)
    if levels.starvation is not None:
        waited_out = queues.waited_s + _LATE_S >= _patience_s(queues, levels.starvation)
        rises = (held == 0) & (queues.level > 0) & (queues.executed_s > 0) & waited_out
    if not (sinks.any() or rises.any()):  # no job moves
        return queues
    queues = replace(
        queues,
        level=np.where(rises, 0, queues.level + sinks),
        service=np.where(rises, 0.0, queues.service),
        executed_s=np.where(rises, 0.0, queues.executed_s),
        waited_s=np.where(rises, 0.0, queues.waited_s),
    )
    return _tailed(queues, moves=sinks | rises)


def _tailed(queues: Queues, *, moves: npt.NDArray[np.bool_]) -> Queues:
    """The queues after the jobs with ``moves`` have gone to the tails of their new queues, in order of arrival."""
    movers = np.flatnonzero(moves)
    movers = movers[np.argsort(queues.job[movers])]
    order = np.concatenate((np.flatnonzero(~moves), movers))
    return _chosen(queues, which=order[np.argsort(queues.level[order], kind="stable")])


def _limits(levels: Levels) -> Floats:
    return np.array([*levels.quanta, math.inf])
