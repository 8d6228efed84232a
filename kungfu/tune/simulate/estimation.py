"""Time and cost of an allocation plan: the stages' longest chains one after another, then the bill.

Every stage ends in a meeting of all its trials, so the longest path of the whole graph is the sum of the longest paths
of the stages. That makes a plan cheap to judge; `kungfu.tune.simulate.dag` builds the graph itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kungfu.errors import UsageError
from kungfu.tune.model.latency import Seconds
from kungfu.tune.simulate import parts
from kungfu.tune.simulate.simulator import Simulator, remember
from kungfu.tune.simulate.tenancy import tenancies

__all__ = ["Estimate", "Plan", "Sampled", "estimate", "sample"]

Plan = tuple[int, ...]
"""GPUs of each stage."""


@dataclass(frozen=True)
class Estimate:
    """What a plan is predicted to take: ``seconds`` and ``dollars``, each the mean over the drawn runs."""

    gpus: Plan
    seconds: float
    dollars: float


@dataclass(frozen=True)
class Sampled:
    """A plan's drawn runs: ``ready`` and ``ends`` are (stages, runs) seconds since the start, ``dollars`` (runs,).

    ``ready`` is when the provider has delivered (the bill of new instances starts), ``ends`` when the stage has met.
    """

    instances: tuple[int, ...]
    ready: Seconds
    ends: Seconds
    dollars: Seconds


def estimate(simulator: Simulator, *, plan: Plan) -> Estimate:
    """The mean completion time and cost of ``plan``: GPUs of each stage, all at least 1.

    Per instance, the cost is ``sum max(minimum, release - delivery) * price`` over all instances that ever lived, per
    function ``sum duration * GPUs * price / GPUs of an instance`` over all trials; plus the data of every instance
    ever provisioned. Cost: about 50 us for ten stages seen before.
    Raises: UsageError for a plan that does not fit.

    >>> from kungfu.tune import Cloud, Instance, Simulator, scaling, successive_halving
    >>> job = successive_halving(4, least=1, most=7, eta=2)
    >>> curve = scaling({1: 10.0, 2: 6.0, 3: 4.8, 4: 4.5})
    >>> cloud = Cloud(Instance(gpus=1, dollars_per_s=0.001, minimum_s=0))
    >>> found = estimate(Simulator(job, curve, cloud), plan=(4, 2, 1))
    >>> round(found.seconds, 3), round(found.dollars, 3)
    (70.0, 0.12)

    Misra et al., 2021, section 4.2 and algorithm 1.
    """

    def compute() -> Estimate:
        sampled = sample(simulator, plan=plan)
        return Estimate(plan, float(sampled.ends[-1].mean()), float(sampled.dollars.mean()))

    return remember(simulator, key=("estimate", plan), compute=compute)


def sample(simulator: Simulator, *, plan: Plan) -> Sampled:
    """Draw the runs of ``plan``: when each stage is delivered and ends, and what each run costs."""
    _check(simulator, plan=plan)
    instances = tuple(parts.instances(simulator, stage=stage, gpus=gpus) for stage, gpus in enumerate(plan))
    ready: list[Seconds] = []
    ends: list[Seconds] = []
    now: Seconds = np.zeros(simulator.runs)
    for stage, (new, gpus) in enumerate(zip(_new(instances), plan, strict=True)):
        if new > 0:
            now = now + parts.wait(simulator, stage=stage)
        ready.append(now)
        if new > 0:
            now = now + parts.slowest_setup(simulator, stage=stage, count=new)
        now = now + parts.training(simulator, stage=stage, gpus=gpus).seconds
        ends.append(now)
    delivered, met = np.array(ready), np.array(ends)
    dollars = _compute(simulator, plan=plan, instances=instances, ready=delivered, ends=met)
    data = sum(_new(instances)) * simulator.cloud.data.dollars
    return Sampled(instances, delivered, met, dollars + data)


def _check(simulator: Simulator, *, plan: Plan) -> None:
    stages = simulator.experiment.num_stages()
    if len(plan) != stages:
        raise UsageError(f"the plan {plan} has {len(plan)} entries; the experiment has {stages} stages, give one each")
    if min(plan) < 1:
        raise UsageError(f"the plan {plan} gives a stage no GPU; give every stage at least 1")


def _new(instances: Sequence[int]) -> list[int]:
    """How many instances each stage provisions."""
    return [max(0, needed - held) for held, needed in zip((0, *instances), instances, strict=False)]


def _compute(simulator: Simulator, *, plan: Plan, instances: Sequence[int], ready: Seconds, ends: Seconds) -> Seconds:
    if simulator.cloud.billing == "function":
        return _trained(simulator, plan=plan)
    return _held(simulator, instances=instances, ready=ready, ends=ends)


def _trained(simulator: Simulator, *, plan: Plan) -> Seconds:
    """The bill per function: (runs,) dollars."""
    instance = simulator.cloud.instance
    gpu_s = [parts.training(simulator, stage=stage, gpus=gpus).gpu_s for stage, gpus in enumerate(plan)]
    return np.asarray(np.sum(gpu_s, axis=0) * (instance.dollars_per_s / instance.gpus))


def _held(simulator: Simulator, *, instances: Sequence[int], ready: Seconds, ends: Seconds) -> Seconds:
    """The bill per instance: (runs,) dollars."""
    groups = tenancies(instances)
    counts = np.array([group.count for group in groups], dtype=np.float64)
    seconds = ends[[group.last for group in groups]] - ready[[group.first for group in groups]]
    billed = np.maximum(seconds, simulator.cloud.instance.minimum_s)
    return np.asarray(counts @ billed * simulator.cloud.instance.dollars_per_s)
