"""Combinations of policies on one job: all together, with a choice among their requests, or with one as a trial."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from kungfu.control import (
    Budget,
    Rescale,
    Rule,
    ScaleLearningRate,
    SetGlobalBatchSize,
    SetLearningRate,
    SetVariable,
    Synchronise,
    Trigger,
)
from kungfu.control.action import Setting, numbers_of, setting_of
from kungfu.control.rate_limit import last_request
from kungfu.control.rule import (
    batch_rule,
    distinct_name,
    factor_rule,
    rate_rule,
    rescale_rule,
    synchronise_rule,
    variable_rule,
)
from kungfu.errors import InternalError, PolicyError
from kungfu.ops import is_finite, maximum, minimum, where
from kungfu.policy_definition.policy import Policy
from kungfu.signal import Constant, Signal, Source, TrainingSignals, as_signal
from kungfu.signal.source_location import attributed_to, location_of_caller

Setter = Rescale | SetGlobalBatchSize | SetLearningRate | ScaleLearningRate | SetVariable | Synchronise
# Chooses between two requests, given the present value. A request is float32, NaN before the first.
Choice = Callable[[Signal, Signal, Signal], Signal]
# The numbers of a request, with the setting that it is about first.
Numbers = Mapping[Setting, Signal]


def compose(*policies: Policy) -> Policy:
    """All rules of these policies as one policy; signals that several policies define identically are computed once.

    Each rule stays under the budget of its own policy. Conflicts are not resolved: if two of the policies set the same
    value (the size, the global batch size, the learning rate), `attach` raises `PolicyError`; write `first`, `at_most`
    or `at_least` instead.

    Args:
        policies: At least one policy.

    Raises:
        PolicyError: An argument is not a policy.

    >>> from kungfu.policies import gns_batch, linear_scaling
    >>> compose(gns_batch(max_peers=8), linear_scaling()).name
    'compose(gns_batch, linear_scaling)'
    """
    _check(policies, of="compose")
    name = _called("compose", policies)
    return Policy(name, lambda training: tuple(_rules(policies, training)), location_of_caller())


def shadow(policy: Policy) -> Policy:
    """This policy, evaluated and logged but never carried out: a trial before it is used.

    Its rules use no budget and conflict with no other rule. A rule that requests a number is logged only when that
    number changes, since the request is never carried out.

    Args:
        policy: The policy to try.

    Cost:
        That of the policy, plus one number and one truth value of state for each rule that requests a number.

    >>> from kungfu.policies import gns_batch
    >>> shadow(gns_batch(max_peers=8)).name
    'shadow(gns_batch)'
    """
    _check((policy,), of="shadow")

    def body(training: TrainingSignals) -> tuple[Rule, ...]:
        return tuple(replace(one, name=f"shadow({one.name})", mode="shadow") for one in policy.build(training))

    return Policy(f"shadow({policy.name})", body, location_of_caller())


def at_most(*policies: Policy) -> Policy:
    """Combines policies: a setting that several of them set gets the smallest of their requests.

    The last request of a policy remains valid until its next request, and every step requests the smallest of these
    numbers, so a request made while a change was pending is carried out later. A policy without a request yet counts
    with the present value, so a cap alone never makes the cluster grow. A batch or a rate that a policy asks for with
    its size comes with that size only: if the size of another policy is chosen, so are its batch and rate, or none. A
    rule is unchanged if no other policy has a
    rule for its setting. A merged rule fires only if the budgets of all its policies allow it, so the strictest budget
    applies; requests made in the meantime are carried out later.

    Args:
        policies: At least two policies.

    Raises:
        PolicyError: Fewer than two policies are given. At `attach`: none of them sets anything, or two set the same
            value in different ways (another batch size to keep, another ramp).

    Cost:
        One float of state for each rule that is merged, no message.

    On rescale:
        The requests of policies remain valid.
    """
    return _combined("at_most", policies, choose=lambda one, other, now: minimum(_or(one, now), _or(other, now)))


def at_least(*policies: Policy) -> Policy:
    """Combines policies: a setting that several of them set gets the largest of their requests. Everything else is as
    for `at_most`."""
    return _combined("at_least", policies, choose=lambda one, other, now: maximum(_or(one, now), _or(other, now)))


def first(*policies: Policy) -> Policy:
    """Combines policies: for a setting that several of them set, the first policy that has a request decides.

    An earlier policy has priority from its first request on, because requests remain valid. Everything else is as for
    `at_most`.

    Args:
        policies: At least two policies, the first with the highest priority.
    """
    return _combined("first", policies, choose=lambda one, other, now: _or(one, other))


def _or(request: Signal, otherwise: Signal) -> Signal:
    return where(is_finite(request), request, otherwise)


def _combined(rule: str, policies: tuple[Policy, ...], *, choose: Choice) -> Policy:
    _check(policies, of=rule)
    if len(policies) < 2:
        raise PolicyError(f"{rule}: takes at least two policies, got {len(policies)}")
    name, origin = _called(rule, policies), location_of_caller()

    def body(training: TrainingSignals) -> tuple[Rule, ...]:
        rules = tuple(_rules(policies, training))
        with attributed_to(origin):
            return _resolved(name, rules, choose=choose)

    return Policy(name, body, origin)


def _resolved(name: str, rules: tuple[Rule, ...], *, choose: Choice) -> tuple[Rule, ...]:
    """One merged rule for each setting that several rules set; other rules unchanged; in the order of the policies."""
    contested: dict[tuple[Setting, str], list[Rule]] = {}
    for one in rules:
        setting = setting_of(one.action)
        # Only acting rules can conflict; each event (a step, a rescale) is resolved separately.
        if setting is not None and one.mode == "acting":
            contested.setdefault((setting, one.trigger.event), []).append(one)
    if not contested:
        raise PolicyError(
            f"{name}: none of these policies rescales or sets a batch size, a learning rate or a value, so there is "
            "nothing to choose from; list them, or write kf.compose(...)"
        )
    # The merged rule replaces the first of its group, and the others are dropped.
    groups = [tuple(group) for group in contested.values() if len(group) > 1]
    chosen = {id(group[0]): _merged(name, group, choose=choose) for group in groups}
    gone = {id(one) for group in groups for one in group[1:]}
    return tuple(chosen.get(id(one), one) for one in rules if id(one) not in gone)


def _rules(policies: tuple[Policy, ...], training: TrainingSignals) -> Iterator[Rule]:
    for one in policies:
        yield from one.build(training)


def _called(rule: str, policies: tuple[Policy, ...]) -> str:
    return f"{rule}({', '.join(one.name for one in policies)})"


def _check(policies: tuple[Policy, ...], *, of: str) -> None:
    for one in policies:
        if not isinstance(one, Policy):
            raise PolicyError(f"{of}({one!r}): takes policies, as in {of}(gns_batch(max_peers=8), schedule(...))")
    if not policies:
        raise PolicyError(f"{of}(): takes policies, got none")


# ---- rules that set the same value are merged into one, which follows the chosen request ----------------------------


def _merged(name: str, rules: tuple[Rule, ...], *, choose: Choice) -> Rule:
    """One rule in place of several that set the same value.

    The merged rule is evaluated in every step, or on every rescale, because the last requests of the rules that
    it replaces can differ from the present value at any time.

    Args:
        name: The name of the merged rule.
        rules: At least two rules that are evaluated on the same event and differ only in the requested number.
        choose: Returns the request to carry out, given two requests and the present value.

    Raises:
        PolicyError: The rules differ in more than the requested number, for example in the batch size to keep.
    """
    _check_terms(name, rules)
    requests, about = _requests(rules), setting_of(rules[0].action)
    assert about is not None, rules
    present = about.replace(" ", "_")  # the source with the name of the setting
    has_no_source = isinstance(rules[0].action, (ScaleLearningRate, SetVariable, Synchronise))
    now = None if has_no_source else Source(present) * 1.0
    chosen = functools.reduce(functools.partial(_chosen, choose=choose, now=now), requests.values())
    trigger = Trigger(Constant(True), Constant(True), event=rules[0].trigger.event)
    made = _asking(chosen, like=rules, trigger=trigger, name=name)
    # The record shows the inputs of the rules, then the request of each, then the present value and the target.
    outcome = (present, "target", "target_batch", "target_rate")
    last = {label: signal for label, signal in made.inputs.items() if label in outcome}
    seen = {label: signal for one in rules for label, signal in one.inputs.items() if label not in last}
    inputs = {**seen, **{label: numbers[about] for label, numbers in requests.items()}, **last}
    return replace(made, inputs=inputs, candidates=tuple(requests), budgets=_budgets(rules), merged=rules)


def _chosen(one: Numbers, other: Numbers, *, choose: Choice, now: Signal | None) -> Numbers:
    """The chosen of two requests. A batch or a rate comes with the size for which its policy asks, and with no other;
    if both policies ask for the chosen size, the first that has a batch or a rate gives it."""
    about = next(iter(one))
    # No source is the present value of a variable, of a factor or of the averaging interval: a policy without a request
    # does not count.
    now = _or(one[about], other[about]) if now is None else now
    target, nothing = choose(one[about], other[about], now), as_signal(math.nan)
    chosen = {about: target}
    for setting in [setting for setting in dict.fromkeys((*one, *other)) if setting != about]:
        first, second = one.get(setting, nothing), other.get(setting, nothing)
        second = where(other[about] == target, second, math.nan)
        chosen[setting] = where((one[about] == target) & is_finite(first), first, second)
    return chosen


def _setter(rule: Rule) -> Setter:
    if not isinstance(rule.action, Setter):
        raise InternalError(f"rule {rule.name!r} does {rule.action!r}, which sets nothing")
    return rule.action


def _asking(numbers: Numbers, *, like: tuple[Rule, ...], trigger: Trigger, name: str) -> Rule:
    action, target = _setter(like[0]), next(iter(numbers.values()))
    if isinstance(action, Rescale):
        batch, rate = numbers.get("global batch size"), numbers.get("learning rate")
        ramps = [one.action for one in like if isinstance(one.action, Rescale) and one.action.rate is not None]
        length, unit = (ramps[0].ramp_length, ramps[0].unit) if ramps else (0.0, action.unit)
        most = action.max_global_batch or None
        return rescale_rule(
            target, trigger=trigger, keep=action.keep, name=name, max_global_batch=most,
            batch=batch, rate=rate, ramp_length=length, unit=unit,
        )  # fmt: skip
    if isinstance(action, SetGlobalBatchSize):
        return batch_rule(target, trigger=trigger, name=name)
    if isinstance(action, ScaleLearningRate):
        return factor_rule(target, trigger=trigger, name=name)
    if isinstance(action, Synchronise):
        return synchronise_rule(target, trigger=trigger, name=name)
    if isinstance(action, SetVariable):
        return variable_rule(target, variable=action.name, trigger=trigger, name=name)
    return rate_rule(target, trigger=trigger, ramp_length=action.ramp_length, unit=action.unit, name=name)


def _budgets(rules: tuple[Rule, ...]) -> dict[str, Budget]:
    """The budgets of all rules, by name; the merged rule may only change its value if each of them allows it."""
    budgets: dict[str, Budget] = {}
    for one in rules:
        for name, budget in one.budgets.items():
            # Two policies of one name may have different budgets.
            if budgets.get(name) != budget:
                budgets[distinct_name(name, used=budgets)] = budget
    return budgets


def _check_terms(name: str, rules: tuple[Rule, ...]) -> None:
    """Raises `PolicyError` if the rules differ in the batch size that they keep, its limit, or the ramp of the rate."""
    for terms in zip(*map(_terms, rules), strict=True):
        named = {term: rule.name for term, rule in reversed(list(zip(terms, rules, strict=True))) if term}
        if len(named) > 1:
            asked = ", ".join(f"{rule} {term}" for term, rule in reversed(named.items()))
            raise PolicyError(f"{name}: {asked}; policies that share a setting must set it on the same terms")


def _terms(rule: Rule) -> tuple[str, str]:
    """The terms of a rule for the batch, and for the ramp of the rate; empty where the rule has none."""
    action, kept, moved = rule.action, "", ""
    if isinstance(action, Rescale):
        most = f" up to {action.max_global_batch} samples a step" if action.max_global_batch else ""
        kept = f"keeps {action.keep}{most}"
    if isinstance(action, SetLearningRate) or (isinstance(action, Rescale) and action.rate is not None):
        moved = f"moves the rate over {action.ramp_length:g} {action.unit}"
    return kept, moved


def _requests(rules: tuple[Rule, ...]) -> dict[str, Numbers]:
    """The last request of each rule, carried out or not, by the name of the rule."""
    requests: dict[str, Numbers] = {}
    for one in rules:
        numbers, trigger = numbers_of(one.action), one.trigger
        # In a barrier that changes the size, each rule makes a new request: earlier requests do not count.
        if trigger.event == "rescale":
            last = tuple[Signal, ...](where(trigger.predicate, number, math.nan) for number in numbers.values())
        else:
            last = last_request(
                tuple(numbers.values()), asked=trigger.predicate, gate=trigger.gate, cooldown=trigger.pause
            )
        requests[distinct_name(one.name, used=requests)] = dict(zip(numbers, last, strict=True))
    return requests
