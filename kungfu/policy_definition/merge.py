"""Merge: rules that set the same value become one, which follows the request that a choice prefers.

A request is a float32 signal, NaN as long as its rule has not requested anything; it holds the last request of the
rule.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from kungfu.control import Budget, Rescale, Rule, SetGlobalBatchSize, SetLearningRate, Trigger
from kungfu.control.rate_limit import last_wish
from kungfu.control.rule import batch_rule, distinct_name, rate_rule, rescale_rule
from kungfu.errors import InternalError, PolicyError
from kungfu.ops import where
from kungfu.signal import Constant, Signal, Source

Setter = Rescale | SetGlobalBatchSize | SetLearningRate
Choice = Callable[[Signal, Signal, Signal], Signal]  # of two wishes and what is; a wish that is NaN is none


def merged_rule(name: str, rules: tuple[Rule, ...], *, choose: Choice) -> Rule:
    """One rule in place of several that set the same value.

    It is evaluated in every step, or on every rescale, because the standing requests of its candidates can differ from
    the present value at any time.

    Args:
        name: The name of the merged rule.
        rules: At least two rules on one event, which set the same value on the same terms.
        choose: Chooses between two requests, given the present value as well.

    Raises:
        PolicyError: The rules set it on different terms.
    """
    setters = [_setter(one) for one in rules]
    _check_terms(name, rules)
    wishes = _wishes(rules)
    present = Source(_PRESENT[type(setters[0])]) * 1.0
    chosen = functools.reduce(lambda one, other: choose(one, other, present), wishes.values())
    trigger = Trigger(Constant(True), Constant(True), event=rules[0].trigger.event)
    made = _asking(chosen, like=setters[0], trigger=trigger, name=name)
    # The record shows what the rules saw, then what each asked for, then the present value and the target.
    last = {label: signal for label, signal in made.inputs.items() if label in (_PRESENT[type(setters[0])], "target")}
    seen = {label: signal for one in rules for label, signal in one.inputs.items() if label not in last}
    return replace(made, inputs={**seen, **wishes, **last}, candidates=tuple(wishes), budgets=_budgets(rules))


_PRESENT: Mapping[type, str] = {
    Rescale: "size",
    SetGlobalBatchSize: "global_batch_size",
    SetLearningRate: "learning_rate",
}


def _setter(rule: Rule) -> Setter:
    if not isinstance(rule.action, Setter):
        raise InternalError(f"rule {rule.name!r} does {rule.action!r}, which sets nothing")
    return rule.action


def _asking(target: Signal, *, like: Setter, trigger: Trigger, name: str) -> Rule:
    if isinstance(like, Rescale):
        return rescale_rule(
            target, trigger=trigger, keep=like.keep, name=name, max_global_batch=like.max_global_batch or None
        )
    if isinstance(like, SetGlobalBatchSize):
        return batch_rule(target, trigger=trigger, name=name)
    return rate_rule(target, trigger=trigger, ramp_length=like.ramp_length, unit=like.unit, name=name)


def _budgets(rules: tuple[Rule, ...]) -> dict[str, Budget]:
    """The budgets of all rules: each must allow a change, so the merged rule is under the strictest of them."""
    budgets: dict[str, Budget] = {}
    for one in rules:
        for name, budget in one.budgets.items():
            # Two policies of one name may have different budgets.
            if budgets.get(name) != budget:
                budgets[distinct_name(name, taken=budgets)] = budget
    return budgets


def _check_terms(name: str, rules: tuple[Rule, ...]) -> None:
    """Checks that everything but the number, which is chosen, is the same for all actions."""
    terms = {_terms(one): one.name for one in reversed(rules)}
    if len(terms) > 1:
        asked = ", ".join(f"{rule} {term}" for term, rule in reversed(terms.items()))
        raise PolicyError(f"{name}: {asked}; policies that share a setting must set it on the same terms")


def _terms(rule: Rule) -> str:
    action = rule.action
    if isinstance(action, Rescale):
        most = f" up to {action.max_global_batch} samples a step" if action.max_global_batch else ""
        return f"keeps {action.keep}{most}"
    if isinstance(action, SetLearningRate):
        return f"moves the rate over {action.ramp_length:g} {action.unit}"
    return ""


def _wishes(rules: tuple[Rule, ...]) -> dict[str, Signal]:
    """The last request of each rule, by policy, carried out or not."""
    wishes: dict[str, Signal] = {}
    for one in rules:
        wishes[distinct_name(one.name, taken=wishes)] = _wish(one)
    return wishes


def _wish(rule: Rule) -> Signal:
    target, trigger = _setter(rule).target, rule.trigger
    if trigger.event == "rescale":  # asked anew in every barrier: nothing stands
        return where(trigger.predicate, target, math.nan)
    return last_wish(target, asked=trigger.predicate, gate=trigger.gate, cooldown=trigger.pause)
