"""The rules that fired in a step, decoded from an outcome: for training, for replays and for modelled clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kungfu.compiler.plan import Outcome, Plan, inputs_of_rules
from kungfu.compiler.rescale_rules import evaluate_rescale_rules
from kungfu.control import Action, Replace, Rule
from kungfu.control.action import mask_of
from kungfu.control.rule import RuleMode, verdict

__all__ = ["FiredRule", "fired_on_rescale", "fired_rules"]


@dataclass(frozen=True)
class FiredRule:
    """A rule that fired.

    Args:
        step: The step after which it fired.
        rule: Its name.
        action: What it asks for.
        value: The number that it asks for; NaN where it asks for none.
        inputs: The values that it read, by name.
        ranks: The ranks that its mask names; on a modelled cluster those of them that its budget let it replace.
        won: The candidates whose target it took, where it was merged from several rules.
        lost: The candidates whose target it did not take.
        mode: Whether it acts, is in the shadow, or was held back by the budget.
        over_budget: Whether its budget is used up, so that a hook cannot have what it asks for.
        replacements_left: How many peers its budgets let it replace; ``None`` where they do not count them apart.
        held_by: The budgets that hold it back, in words, where they do.
        unmet: On a modelled cluster, why nothing came of it; empty where something did.
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


def fired_rules(plan: Plan, outcome: Outcome, *, step: int) -> list[FiredRule]:
    """The rules that fired in ``step``, in the order of the plan; those too that do not act.

    Args:
        plan: The plan that was evaluated.
        outcome: Its outcome, as arrays.
        step: The step that it belongs to.
    """
    if not np.any(outcome.fired):
        # What is true of most steps; the inputs of a rule that did not fire mean nothing.
        return []
    found, masks = list[FiredRule](), iter(outcome.masks)
    inputs_by_rule = inputs_of_rules(plan, outcome.inputs, outcome.inputs_whole)
    for index, (rule, inputs) in enumerate(zip(plan.rules, inputs_by_rule, strict=True)):
        # Only a rule about some peers has a row of masks, whether it fired or not.
        marked = None if mask_of(rule.action) is None else next(masks)
        if outcome.fired[index]:
            ranks = () if marked is None else tuple(int(rank) for rank in np.flatnonzero(marked))
            found.append(_fired(rule, step, float(outcome.targets[index]), inputs, ranks))
    return found


def _fired(rule: Rule, step: int, value: float, inputs: Mapping[str, float], ranks: tuple[int, ...]) -> FiredRule:
    won, lost = verdict(rule, inputs) if rule.candidates else ((), ())
    over_budget = bool(rule.budget) and inputs[rule.budget] < 1
    left = max(0, int(inputs[rule.replacement_budget])) if rule.replacement_budget else None
    held_by = _limits(rule) if rule.mode == "held" else ""
    return FiredRule(
        step, rule.name, rule.action, value, inputs, ranks, won, lost, rule.mode, over_budget, left, held_by
    )


def _limits(rule: Rule) -> str:
    replacing = isinstance(rule.action, Replace)
    return " or ".join(dict.fromkeys(one.limit_on(replacing=replacing) for one in rule.budgets.values()))


def fired_on_rescale(
    plan: Plan, sources: Mapping[str, float], *, step: int, mode: RuleMode = "acting"
) -> list[FiredRule]:
    """The rules on a rescale that fire after ``step``, from the numbers of the barrier; see ``rescale_rules``."""
    settings = evaluate_rescale_rules(plan, sources, mode=mode)
    return [FiredRule(step, one.rule, one.action, one.value, one.inputs, mode=mode) for one in settings]
