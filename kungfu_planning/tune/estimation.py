"""The time and cost of an allocation plan: the sum of the slowest chains of trials, one per stage, and the bill.

Every stage ends in a synchronisation of all its trials, so the longest path in the graph of all tasks is the sum of the
longest paths of the stages. So an estimate is cheap; the tests compare estimates with the graph itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kungfu.errors import UsageError
from kungfu_planning.tune.latency import Seconds
from kungfu_planning.tune.simulator import (
    Simulator,
    provider_wait,
    redrawn,
    remember,
    slowest_setup,
    stage_instances,
    stage_training,
)

AllocationPlan = tuple[int, ...]
"""The GPUs of each stage."""


@dataclass(frozen=True)
class Estimate:
    """The predicted ``seconds`` and ``dollars`` of a plan, each the mean over the drawn runs."""

    gpus: AllocationPlan
    seconds: float
    dollars: float


@dataclass(frozen=True)
class Sampled:
    """The drawn runs of a plan.

    Attributes:
        instances: instances of each stage.
        ready: (stages, runs) seconds from the start to the delivery of new instances; their billing begins at the
            delivery.
        ends: (stages, runs) seconds from the start to the end of the stage's synchronisation.
        dollars: (runs,) the cost of each run.
    """

    instances: tuple[int, ...]
    ready: Seconds
    ends: Seconds
    dollars: Seconds


def estimate(simulator: Simulator, *, plan: AllocationPlan) -> Estimate:
    """The mean completion time and cost of a plan.

    If billed per instance, the cost is ``sum max(minimum, release - delivery) * price`` over all provisioned instances.
    If billed per function, it is ``sum duration * GPUs * price / GPUs of an instance`` over all trials. The cost of the
    data of every provisioned instance is added.

    Args:
        simulator: the job and the cloud.
        plan: the GPUs of each stage, all at least 1.

    Raises:
        UsageError: The plan and the job differ in the number of stages, or a stage has no GPUs.

    Cost:
        About 50 us for ten stages with cached parts.

    >>> from kungfu_planning.tune import Cloud, Instance, Simulator, scaling, successive_halving
    >>> job = successive_halving(4, least=1, most=7, eta=2)
    >>> curve = scaling({1: 10.0, 2: 6.0, 3: 4.8, 4: 4.5})
    >>> cloud = Cloud(Instance(gpus=1, dollars_per_s=0.001, minimum_s=0))
    >>> found = estimate(Simulator(job, curve, cloud), plan=(4, 2, 1))
    >>> round(found.seconds, 3), round(found.dollars, 3)
    (70.0, 0.12)

    Reference:
        Misra et al., 2021, section 4.2 and algorithm 1.
    """

    def compute() -> Estimate:
        sampled = sample(simulator, plan=plan)
        return Estimate(plan, float(sampled.ends[-1].mean()), float(sampled.dollars.mean()))

    return remember(simulator, key=("estimate", plan), compute=compute)


def completion_s(simulator: Simulator, *, plan: AllocationPlan, runs: int) -> Seconds:
    """The completion times of ``runs`` drawn runs of a plan (fewer if the search is very large): (runs,) seconds."""
    return np.asarray(sample(redrawn(simulator, samples=runs, seed=simulator.seed), plan=plan).ends[-1])


@dataclass(frozen=True)
class Outlook:
    """The time and cost of runs of a plan that were not drawn during planning.

    Attributes:
        seconds: (seeds, runs) the completion time of each run, by seed.
        dollars: (seeds, runs) the cost of each run.
    """

    seconds: Seconds
    dollars: Seconds


FRESH_SEEDS, FRESH_RUNS = 5, 400
"""The number of seeds of an `Outlook`, and of runs per seed; fewer runs for more than 25,000 trials."""


def outlook(simulator: Simulator, *, plan: AllocationPlan, first_seed: int) -> Outlook:
    """Draws runs of a plan that no planner has seen, with 5 seeds from ``first_seed`` on; 1 if nothing is random."""
    seeds = range(first_seed, first_seed + (FRESH_SEEDS if simulator.is_random else 1))
    drawn = [sample(redrawn(simulator, samples=FRESH_RUNS, seed=seed), plan=plan) for seed in seeds]
    return Outlook(np.stack([each.ends[-1] for each in drawn]), np.stack([each.dollars for each in drawn]))


def sample(simulator: Simulator, *, plan: AllocationPlan) -> Sampled:
    """Draws the runs of a plan: the delivery and the end of each stage, and the cost of each run."""
    _check(simulator, plan=plan)
    instances = tuple(stage_instances(simulator, stage=stage, gpus=gpus) for stage, gpus in enumerate(plan))
    ready: list[Seconds] = []
    ends: list[Seconds] = []
    now: Seconds = np.zeros(simulator.runs)
    for stage, (new, gpus) in enumerate(zip(_provisioned(instances), plan, strict=True)):
        if new > 0:
            now = now + provider_wait(simulator, stage=stage)
        ready.append(now)
        if new > 0:
            now = now + slowest_setup(simulator, stage=stage, count=new)
        now = now + stage_training(simulator, stage=stage, gpus=gpus).seconds
        ends.append(now)
    delivered, met = np.array(ready), np.array(ends)
    dollars = _bill(simulator, plan=plan, instances=instances, ready=delivered, ends=met)
    data = sum(_provisioned(instances)) * simulator.cloud.data.dollars
    return Sampled(instances, delivered, met, dollars + data)


def _check(simulator: Simulator, *, plan: AllocationPlan) -> None:
    stages = len(simulator.experiment.stages)
    if len(plan) != stages:
        raise UsageError(f"the plan {plan} has {len(plan)} entries; the experiment has {stages} stages, give one each")
    if min(plan) < 1:
        raise UsageError(f"the plan {plan} gives a stage no GPU; give every stage at least 1")


def _provisioned(instances: Sequence[int]) -> list[int]:
    """The number of new instances of each stage: the instances that it needs beyond those of the stage before."""
    return [max(0, needed - held) for held, needed in zip((0, *instances), instances, strict=False)]


def _bill(
    simulator: Simulator, *, plan: AllocationPlan, instances: Sequence[int], ready: Seconds, ends: Seconds
) -> Seconds:
    if simulator.cloud.billing == "function":
        return _bill_per_function(simulator, plan=plan)
    return _bill_per_instance(simulator, instances=instances, ready=ready, ends=ends)


def _bill_per_function(simulator: Simulator, *, plan: AllocationPlan) -> Seconds:
    """The cost of each run if the provider bills the trials' GPU seconds: (runs,) dollars, without the data."""
    instance = simulator.cloud.instance
    gpu_s = [stage_training(simulator, stage=stage, gpus=gpus).gpu_s for stage, gpus in enumerate(plan)]
    return np.asarray(np.sum(gpu_s, axis=0) * (instance.dollars_per_s / instance.gpus))


def _bill_per_instance(simulator: Simulator, *, instances: Sequence[int], ready: Seconds, ends: Seconds) -> Seconds:
    """The cost of each run if the provider bills instances until their release: (runs,) dollars, without the data."""
    groups = tenancies(instances)
    counts = np.array([group.count for group in groups], dtype=np.float64)
    seconds = ends[[group.last for group in groups]] - ready[[group.first for group in groups]]
    billed = np.maximum(seconds, simulator.cloud.instance.minimum_s)
    return np.asarray(counts @ billed * simulator.cloud.instance.dollars_per_s)


@dataclass(frozen=True)
class Tenancy:
    """``count`` instances, provisioned before stage ``first`` and released after stage ``last``."""

    first: int
    last: int
    count: int


def tenancies(instances: Sequence[int]) -> tuple[Tenancy, ...]:
    """The instances of a plan, grouped by the first and last stage in which they are held.

    A stage that needs more instances provisions the difference. Before a stage that needs fewer, the oldest instances
    are released: these are the first past their minimum bill, so no other order of release is cheaper.

    Args:
        instances: The number of instances of each stage.

    Returns:
        The groups, in the order of their first stages.

    >>> tenancies([2, 5, 3])
    (Tenancy(first=0, last=1, count=2), Tenancy(first=1, last=2, count=3))
    """
    alive: deque[tuple[int, int]] = deque()
    ended: list[Tenancy] = []
    held = 0
    for stage, needed in enumerate(instances):
        # More instances than before are provisioned, fewer are released.
        if needed > held:
            alive.append((stage, needed - held))
        else:
            ended += _release(alive, surplus=held - needed, last=stage - 1)
        held = needed
    return (*ended, *(Tenancy(first, len(instances) - 1, count) for first, count in alive))


def _release(alive: deque[tuple[int, int]], *, surplus: int, last: int) -> list[Tenancy]:
    ended = []
    while surplus > 0:
        first, count = alive.popleft()
        gone = min(count, surplus)
        ended.append(Tenancy(first, last, gone))
        # Some instances of the oldest group are kept.
        if gone < count:
            alive.appendleft((first, count - gone))
        surplus -= gone
    return ended
