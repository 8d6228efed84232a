"""The rules that fired in a step, decoded from an outcome: for training, for replays and for modelled clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kungfu.compiler.compiled_policies import CompiledPolicies, Outcome, inputs_of_rules, is_whole
from kungfu.compiler.evaluate import Evaluation, evaluate_nodes
from kungfu.compiler.replay import NumpyBackend
from kungfu.control import Action, Replace, Rule, SetGlobalBatchSize, SetLearningRate
from kungfu.control.action import mask_of, target_of
from kungfu.control.rule import RuleMode, verdict
from kungfu.errors import InternalError
from kungfu.signal import Signal, Source, topological


@dataclass(frozen=True)
class FiredRule:
    """A rule that fired.

    Args:
        step: The step after which the rule fired.
        value: The requested number; NaN if there is none.
        inputs: The values that the rule read, by name.
        ranks: The ranks that the rule's mask selects; on a modelled cluster, as far as the budget allows.
        won: The candidates with the chosen target, if the rule was merged from several.
        lost: The candidates with other targets.
        mode: The mode of the rule: "acting", "shadow", or "held" if a budget held another rule back.
        over_budget: True if the budget is used up, so that requests of a hook are refused.
        replacements_left: The number of peers that the budgets allow the rule to replace; ``None`` if no budget counts
            replacements separately.
        held_by: The budgets that hold the rule back, as text.
        unmet: On a modelled cluster, the reason why the request had no effect; empty if the request had an effect.
    """

    step: int
    rule: str
    action: Action
    value: float
    inputs: Mapping[str, float]
    ranks: tuple[int, ...] = ()
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    mode: RuleMode = "acting"
    over_budget: bool = False
    replacements_left: int | None = None
    held_by: str = ""
    unmet: str = ""


def fired_rules(plan: CompiledPolicies, outcome: Outcome, *, step: int) -> list[FiredRule]:
    """The rules that fired in `step`, in the order of the plan, including shadow rules and records of held rules."""
    # Most steps end here; the inputs of a rule that did not fire have no meaning.
    if not np.any(outcome.fired):
        return []
    found, masks = list[FiredRule](), iter(outcome.masks)
    inputs_by_rule = inputs_of_rules(plan, outcome.inputs, outcome.inputs_whole)
    for index, (rule, inputs) in enumerate(zip(plan.rules, inputs_by_rule, strict=True)):
        # Each rule that selects peers has a row in the masks, even if the rule did not fire.
        marked = None if mask_of(rule.action) is None else next(masks)
        if outcome.fired[index]:
            ranks = () if marked is None else tuple(int(rank) for rank in np.flatnonzero(marked))
            found.append(_fired(rule, step, float(outcome.targets[index]), inputs, ranks))
    return found


def _fired(rule: Rule, step: int, value: float, inputs: Mapping[str, float], ranks: tuple[int, ...]) -> FiredRule:
    won, lost = verdict(rule, inputs) if rule.candidates else ((), ())
    over_budget = bool(rule.budget) and inputs[rule.budget] < 1
    left = max(0, int(inputs[rule.replacement_budget])) if rule.replacement_budget else None
    limits = (one.limit_on(replacing=isinstance(rule.action, Replace)) for one in rule.budgets.values())
    held_by = " or ".join(dict.fromkeys(limits)) if rule.mode == "held" else ""
    return FiredRule(
        step, rule.name, rule.action, value, inputs, ranks, won, lost, rule.mode, over_budget, left, held_by
    )


def fired_on_rescale(
    plan: CompiledPolicies, sources: Mapping[str, float], *, step: int, mode: RuleMode = "acting"
) -> list[FiredRule]:
    """The rules on a rescale that fire in the barrier after `step`, evaluated by NumPy; batch rules precede rate rules.

    A rule for the learning rate sees the batch that the rules before it set. A rule does not fire if its condition is
    false, its number is not finite, or its number is the present value.

    Args:
        sources: The numbers of `kungfu.signal.sources.RESCALE_SOURCES`: `size` is the new size, `global_batch_size`
            already reflects the rescale's `keep`, `learning_rate` is the final rate of a ramp in progress.
        step: The step before the barrier.
        mode: Only rules of this mode are evaluated.

    Raises:
        InternalError: A source that a rule reads is missing.

    >>> from kungfu.compiler import compile_policies
    >>> from kungfu.policies import linear_scaling
    >>> plan = compile_policies([linear_scaling()])
    >>> seen = {"size": 4, "previous_size": 2, "global_batch_size": 64, "previous_global_batch_size": 32}
    >>> [one.value for one in fired_on_rescale(plan, {**seen, "learning_rate": 0.25, "step": 9}, step=9)]
    [0.5]
    """
    known, chosen = dict(sources), list[FiredRule]()
    # The batch is set first, since a rule for the learning rate may depend on it.
    for rule in sorted(plan.on_rescale, key=lambda one: isinstance(one.action, SetLearningRate)):
        one = _fired_on_rescale(rule, known, step) if rule.mode == mode else None
        if one is not None:
            chosen.append(one)
            known |= {"global_batch_size": one.value} if isinstance(one.action, SetGlobalBatchSize) else {}
    return chosen


def _fired_on_rescale(rule: Rule, sources: Mapping[str, float], step: int) -> FiredRule | None:
    target = target_of(rule.action)
    if target is None or not isinstance(rule.action, (SetGlobalBatchSize, SetLearningRate)):
        raise InternalError(f"rule {rule.name!r} on a rescale does {rule.action!r}, which a barrier cannot set")
    fires, value, *inputs = _computed((rule.fires, target, *rule.inputs.values()), sources)
    # The rule's condition is false, or the rule requests the present value.
    if not fires:
        return None
    return FiredRule(step, rule.name, rule.action, value, dict(zip(rule.inputs, inputs, strict=True)), mode=rule.mode)


def _computed(results: tuple[Signal, ...], sources: Mapping[str, float]) -> list[float]:
    nodes = topological(results)
    missing = {one.source for one in nodes if isinstance(one, Source)} - set(sources)
    if missing:
        raise InternalError(f"the barrier did not offer {sorted(missing)} that the rules on a rescale read")
    backend = NumpyBackend({name: (np.asarray(value),) for name, value in sources.items()}, 1)
    with np.errstate(all="ignore"):
        values = evaluate_nodes(nodes, Evaluation(backend, {}))
    return [int(values[one][0]) if is_whole(one) else float(values[one][0]) for one in results]
