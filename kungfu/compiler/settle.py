"""Settle: what the rules on a rescale set, on the host, inside the barrier that changes the size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kungfu.compiler.plan import Plan, is_whole
from kungfu.compiler.replay import NumpyCluster
from kungfu.compiler.walk import Evaluation, evaluated
from kungfu.control import Rule, SetGlobalBatchSize, SetLearningRate
from kungfu.control.action import target_of
from kungfu.control.rule import Standing
from kungfu.errors import InternalError
from kungfu.signal import Signal, Source, topological

__all__ = ["Settled", "settle"]

_BATCH = "global_batch_size"


@dataclass(frozen=True)
class Settled:
    """One setting that a rule on a rescale chose, and the values that it saw."""

    rule: str
    action: SetGlobalBatchSize | SetLearningRate
    value: float
    saw: Mapping[str, float]


def settle(plan: Plan, sources: Mapping[str, float], *, standing: Standing = "acting") -> tuple[Settled, ...]:
    """What the rules on a rescale that so stand set, from the numbers of the barrier; the batch before the rate.

    `sources` holds `kungfu.signal.sources.RESCALE_SOURCES`: `size` is the new one, `global_batch_size` has the
    rescale's `keep` carried out, `learning_rate` is where a ramp under way would lead. A rule for the learning rate
    sees the batch that the rules before it set. A rule that does not fire, because its condition does not hold, its
    number is not finite, or it is so already, gives nothing. Raises `InternalError` for a source that is missing.

    >>> from kungfu.compiler import compile_policies
    >>> from kungfu.policies import linear_scaling
    >>> plan = compile_policies([linear_scaling()])
    >>> seen = {"size": 4, "previous_size": 2, "global_batch_size": 64, "previous_global_batch_size": 32}
    >>> [one.value for one in settle(plan, {**seen, "learning_rate": 0.25, "step": 9})]
    [0.5]
    """
    known = dict(sources)
    settled: list[Settled] = []
    for rule in sorted(plan.on_rescale, key=lambda one: isinstance(one.action, SetLearningRate)):
        one = _settled(rule, known) if rule.standing == standing else None
        if one is not None:
            settled.append(one)
            known |= {_BATCH: one.value} if isinstance(one.action, SetGlobalBatchSize) else {}
    return tuple(settled)


def _settled(rule: Rule, sources: Mapping[str, float]) -> Settled | None:
    target = target_of(rule.action)
    if target is None or not isinstance(rule.action, (SetGlobalBatchSize, SetLearningRate)):
        raise InternalError(f"rule {rule.name!r} on a rescale does {rule.action!r}, which a barrier does not settle")
    fires, value, *saw = _computed((rule.fires, target, *rule.saw.values()), sources)
    if not fires:
        return None
    return Settled(rule.name, rule.action, value, dict(zip(rule.saw, saw, strict=True)))


def _computed(results: tuple[Signal, ...], sources: Mapping[str, float]) -> list[float]:
    nodes = topological(results)
    missing = {one.source for one in nodes if isinstance(one, Source)} - set(sources)
    if missing:
        raise InternalError(f"the barrier did not offer {sorted(missing)} that the rules on a rescale read")
    machine = NumpyCluster({name: (np.asarray(value),) for name, value in sources.items()}, 1)
    with np.errstate(all="ignore"):
        values = evaluated(nodes, Evaluation(machine, {}))
    return [int(values[one][0]) if is_whole(one) else float(values[one][0]) for one in results]
