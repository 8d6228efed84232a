"""The neighbours of a plan: one stage made smaller, to the next share that divides fairly."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from kungfu.tune.plan.search import Steps
from kungfu.tune.simulate import Plan, Simulator
from kungfu.tune.simulate.parts import instances

__all__ = ["neighbours", "next_fair"]


@functools.cache
def next_fair(trials: int, *, gpus: int) -> int | None:
    """The largest number of GPUs below ``gpus`` that is a multiple or a divisor of ``trials``; None below 1.

    >>> [next_fair(10, gpus=24), next_fair(10, gpus=20), next_fair(10, gpus=10), next_fair(10, gpus=1)]
    [20, 10, 5, None]
    """
    if gpus > trials:
        return (gpus - 1) // trials * trials
    return next((smaller for smaller in range(gpus - 1, 0, -1) if trials % smaller == 0), None)


def neighbours(simulator: Simulator, *, plan: Plan, steps: Steps) -> Iterator[Plan]:
    """Each plan that differs from ``plan`` in one stage, by one step down.

    ``literal``: the next fair share. ``instance``: besides it, the first fair share that needs fewer instances. Where
    whole instances are paid, 23 GPUs cost what 24 do, six instances of four, and only take longer: a descent by
    literal steps ends on that plateau.
    """
    for stage, gpus in enumerate(plan):
        smaller = next_fair(simulator.experiment.stages[stage].trials, gpus=gpus)
        if smaller is None:
            continue
        yield _with(plan, stage=stage, gpus=smaller)
        if steps == "instance":
            fewer = _fewer_instances(simulator, stage=stage, gpus=gpus)
            if fewer is not None and fewer != smaller:
                yield _with(plan, stage=stage, gpus=fewer)


def _with(plan: Plan, *, stage: int, gpus: int) -> Plan:
    return (*plan[:stage], gpus, *plan[stage + 1 :])


def _fewer_instances(simulator: Simulator, *, stage: int, gpus: int) -> int | None:
    trials = simulator.experiment.stages[stage].trials
    held = instances(simulator, stage=stage, gpus=gpus)
    smaller = next_fair(trials, gpus=gpus)
    while smaller is not None and instances(simulator, stage=stage, gpus=smaller) >= held:
        smaller = next_fair(trials, gpus=smaller)
    return smaller
