"""Rescale rules: the settings that they choose, on the host, inside the barrier that changes the size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kungfu.compiler.evaluate import Evaluation, evaluate_nodes
from kungfu.compiler.plan import Plan, is_whole
from kungfu.compiler.replay import NumpyBackend
from kungfu.control import Rule, SetGlobalBatchSize, SetLearningRate
from kungfu.control.action import target_of
from kungfu.control.rule import RuleMode
from kungfu.errors import InternalError
from kungfu.signal import Signal, Source, topological

__all__ = ["RescaleSetting", "evaluate_rescale_rules"]

_BATCH = "global_batch_size"


@dataclass(frozen=True)
class RescaleSetting:
    """One setting that a rule on a rescale chose, and the values of its inputs."""

    rule: str
    action: SetGlobalBatchSize | SetLearningRate
    value: float
    inputs: Mapping[str, float]


def evaluate_rescale_rules(
    plan: Plan, sources: Mapping[str, float], *, mode: RuleMode = "acting"
) -> tuple[RescaleSetting, ...]:
    """The settings that the rules on a rescale choose from the numbers of the barrier; the batch before the rate.

    A rule for the learning rate sees the batch that the rules before it set. A rule that does not fire, because its
    condition does not hold, its number is not finite, or it is so already, gives nothing.

    Args:
        plan: The plan with the rules.
        sources: The numbers of `kungfu.signal.sources.RESCALE_SOURCES`: `size` is the new one, `global_batch_size` has
            the rescale's `keep` applied, `learning_rate` is where a ramp under way would lead.
        mode: Rules of this mode only.

    Raises:
        InternalError: A source that a rule reads is missing.

    >>> from kungfu.compiler import compile_policies
    >>> from kungfu.policies import linear_scaling
    >>> plan = compile_policies([linear_scaling()])
    >>> seen = {"size": 4, "previous_size": 2, "global_batch_size": 64, "previous_global_batch_size": 32}
    >>> [one.value for one in evaluate_rescale_rules(plan, {**seen, "learning_rate": 0.25, "step": 9})]
    [0.5]
    """
    known = dict(sources)
    chosen: list[RescaleSetting] = []
    # The batch is settled first, since a rule for the learning rate may follow it.
    for rule in sorted(plan.on_rescale, key=lambda one: isinstance(one.action, SetLearningRate)):
        one = _setting(rule, known) if rule.mode == mode else None
        if one is not None:
            chosen.append(one)
            known |= {_BATCH: one.value} if isinstance(one.action, SetGlobalBatchSize) else {}
    return tuple(chosen)


def _setting(rule: Rule, sources: Mapping[str, float]) -> RescaleSetting | None:
    target = target_of(rule.action)
    if target is None or not isinstance(rule.action, (SetGlobalBatchSize, SetLearningRate)):
        raise InternalError(f"rule {rule.name!r} on a rescale does {rule.action!r}, which a barrier cannot set")
    fires, value, *inputs = _computed((rule.fires, target, *rule.inputs.values()), sources)
    # Its condition does not hold, or it asks for what is so already.
    if not fires:
        return None
    return RescaleSetting(rule.name, rule.action, value, dict(zip(rule.inputs, inputs, strict=True)))


def _computed(results: tuple[Signal, ...], sources: Mapping[str, float]) -> list[float]:
    nodes = topological(results)
    missing = {one.source for one in nodes if isinstance(one, Source)} - set(sources)
    if missing:
        raise InternalError(f"the barrier did not offer {sorted(missing)} that the rules on a rescale read")
    backend = NumpyBackend({name: (np.asarray(value),) for name, value in sources.items()}, 1)
    with np.errstate(all="ignore"):
        values = evaluate_nodes(nodes, Evaluation(backend, {}))
    return [int(values[one][0]) if is_whole(one) else float(values[one][0]) for one in results]
