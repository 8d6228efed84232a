"""The execution model itself: one drawn run of a plan as a graph of tasks, and its longest path.

The planner never builds it (see `estimate`), which is checked against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Literal

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

__all__ = ["Node", "NodeKind", "build_graph", "longest_path_s"]

NodeKind = Literal["SCALE", "INIT_INSTANCE", "TRAIN", "SYNC"]


@dataclass(frozen=True)
class Node:
    """One task: it takes ``seconds`` and starts when all of ``after`` (indices of nodes) have ended.

    ``gpus`` is what a TRAIN node trains on, 0 for the others.
    """

    kind: NodeKind
    stage: int
    seconds: float
    after: tuple[int, ...]
    gpus: int = 0


def build_graph(simulator: Simulator, *, plan: AllocationPlan, run: int = 0) -> tuple[Node, ...]:
    """The graph of ``plan`` in drawn run ``run``, stage by stage from the frontier of the one before.

    A stage that needs more instances than the stage before begins with one SCALE and one INIT_INSTANCE per missing
    instance; then comes a TRAIN for each trial, after another trial's where GPUs are short; then a SYNC after all of
    them.

    Args:
        simulator: the job and the cloud.
        plan: GPUs of each stage.
        run: the index of the drawn run, below ``simulator.runs``.

    >>> from kungfu_planning.tune import Cloud, Instance, Simulator, scaling, successive_halving
    >>> job = successive_halving(4, least=1, most=7, eta=2)
    >>> simulator = Simulator(job, scaling({1: 10.0}), Cloud(Instance(gpus=2, dollars_per_s=0.001)))
    >>> [node.kind[0] for node in build_graph(simulator, plan=(4, 2, 1))]
    ['S', 'I', 'I', 'T', 'T', 'T', 'T', 'S', 'T', 'T', 'S', 'T', 'S']

    Reference:
        Misra et al., 2021, figure 7.
    """
    nodes: list[Node] = []
    held = 0
    for stage, gpus in enumerate(plan):
        needed = stage_instances(simulator, stage=stage, gpus=gpus)
        frontier: tuple[int, ...] = (len(nodes) - 1,) if nodes else ()
        if needed > held:
            frontier = _grow(nodes, simulator=simulator, stage=stage, count=needed - held, frontier=frontier, run=run)
        trained = _train(nodes, simulator=simulator, stage=stage, gpus=gpus, frontier=frontier, run=run)
        nodes.append(Node("SYNC", stage, float(stage_sync(simulator, stage=stage)[run]), trained))
        held = needed
    return tuple(nodes)


def _grow(
    nodes: list[Node], *, simulator: Simulator, stage: int, count: int, frontier: tuple[int, ...], run: int
) -> tuple[int, ...]:
    scale = len(nodes)
    nodes.append(Node("SCALE", stage, float(provider_wait(simulator, stage=stage)[run]), frontier))
    seconds = instance_setups(simulator, stage=stage, count=count)[:, run]
    nodes.extend(Node("INIT_INSTANCE", stage, float(each), (scale,)) for each in seconds)
    return tuple(range(scale + 1, len(nodes)))


def _train(
    nodes: list[Node], *, simulator: Simulator, stage: int, gpus: int, frontier: tuple[int, ...], run: int
) -> tuple[int, ...]:
    shared = share(simulator.experiment.stages[stage], gpus=gpus)
    seconds = trial_times(simulator, stage=stage, gpus_per_trial=shared.gpus_per_trial)[:, run].tolist()
    first = len(nodes)
    for duration, before in zip(seconds, assign(seconds, chains=shared.at_once), strict=True):
        after = frontier if before < 0 else (first + before,)
        nodes.append(Node("TRAIN", stage, duration, after, shared.gpus_per_trial))
    return tuple(range(first, len(nodes)))


def longest_path_s(nodes: Sequence[Node]) -> float:
    """When the last task ends, in seconds: each starts at the latest end of those it depends on.

    The order of ``nodes`` does not matter as long as ``after`` names them right.
    """
    ends: dict[int, float] = {}
    for index in TopologicalSorter({i: node.after for i, node in enumerate(nodes)}).static_order():
        node = nodes[index]
        ends[index] = node.seconds + max((ends[before] for before in node.after), default=0.0)
    return max(ends.values())
