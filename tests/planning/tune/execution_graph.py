"""The execution model itself: one drawn run of a plan as a graph of tasks, and its longest path.

The planner never builds it (see `estimate`), which is checked against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kungfu_planning.tune.estimation import AllocationPlan
from kungfu_planning.tune.sharing import assign, share
from kungfu_planning.tune.simulator import (
    Simulator,
    instance_setups,
    provider_wait,
    stage_instances,
    stage_sync,
    trial_times,
)


@dataclass(frozen=True)
class Task:
    """It takes ``seconds``, and starts when all of ``after``, indices of tasks before it, have ended."""

    seconds: float
    after: Sequence[int]


def build_graph(simulator: Simulator, *, plan: AllocationPlan, run: int) -> list[Task]:
    """The graph of ``plan`` in drawn run ``run``, stage by stage from the frontier of the one before.

    A stage that needs more instances than the stage before begins with the wait for the provider and with one set-up
    per missing instance; then comes the training of each trial, after another trial's where GPUs are short; then a
    synchronization after all of them.

    Reference:
        Misra et al., 2021, figure 7.
    """
    tasks: list[Task] = []

    def add(seconds: float, after: Sequence[int]) -> int:
        tasks.append(Task(seconds, after))
        return len(tasks) - 1

    frontier: list[int] = []
    held = 0
    for stage, gpus in enumerate(plan):
        needed = stage_instances(simulator, stage=stage, gpus=gpus)
        if needed > held:
            scaled = add(provider_wait(simulator, stage=stage)[run], frontier)
            setups = instance_setups(simulator, stage=stage, count=needed - held)[:, run]
            frontier = [add(seconds, [scaled]) for seconds in setups]
        shared, trained = share(simulator.experiment.stages[stage], gpus=gpus), list[int]()
        times = trial_times(simulator, stage=stage, gpus_per_trial=shared.gpus_per_trial)[:, run].tolist()
        for seconds, before in zip(times, assign(times, chains=shared.at_once), strict=True):
            trained.append(add(seconds, frontier if before < 0 else [trained[before]]))
        frontier = [add(stage_sync(simulator, stage=stage)[run], trained)]
        held = needed
    return tasks


def longest_path_s(tasks: Sequence[Task]) -> float:
    """When the last task ends, in seconds: each starts at the latest end of those it depends on."""
    ends: list[float] = []
    for task in tasks:
        ends.append(task.seconds + max((ends[before] for before in task.after), default=0.0))
    return max(ends)
