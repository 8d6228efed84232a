"""Combinations of several policies on one job: side by side, in the shadow, or with a choice among their requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kungfu.control import Rule
from kungfu.control.action import Setting, setting_of
from kungfu.errors import PolicyError
from kungfu.ops import is_finite, maximum, minimum, where
from kungfu.policy_definition.merge import Choice, merged_rule
from kungfu.policy_definition.policy import Policy
from kungfu.signal import Signal, TrainingSignals
from kungfu.signal.source_location import attributed_to, location_of_caller


def compose(*policies: Policy) -> Policy:
    """All rules of these policies, as if they were one. Equal parts are computed once.

    Each rule stays under the budget of its own policy. Conflicts are not resolved: if two of the policies set the same
    value (the size, the global batch size, the learning rate), `attach` raises `PolicyError`; write `first`, `at_most`
    or `at_least` instead.

    Args:
        policies: At least one policy.

    Raises:
        PolicyError: One of these is not a policy.

    >>> from kungfu.policies import gns_batch, linear_scaling
    >>> compose(gns_batch(max_peers=8), linear_scaling()).name
    'compose(gns_batch, linear_scaling)'
    """
    _check(policies, of="compose")
    name = _called("compose", policies)
    return Policy(name, lambda training: tuple(_rules(policies, training)), location_of_caller())


def shadow(policy: Policy) -> Policy:
    """This policy, evaluated and logged but never carried out: a trial before it is used.

    Its rules conflict with no others and count against no budget. A rule that requests a number is logged when the
    number changes, because its requests are not carried out.

    Args:
        policy: The policy to try.

    Cost:
        That of the policy, and a number and a truth value of state for each rule that requests a number.

    >>> from kungfu.policies import gns_batch
    >>> shadow(gns_batch(max_peers=8)).name
    'shadow(gns_batch)'
    """
    _check((policy,), of="shadow")

    def body(training: TrainingSignals) -> tuple[Rule, ...]:
        return tuple(replace(one, name=f"shadow({one.name})", mode="shadow") for one in policy.build(training))

    return Policy(f"shadow({policy.name})", body, location_of_caller())


def at_most(*policies: Policy) -> Policy:
    """For each setting for which several of these policies have rules, the smallest number that any of them requests.

    The last request of a policy stands until its next one, and in every step the smallest of these numbers is
    requested; so a request made while a change was pending is carried out later. A policy without a request yet counts
    with the present value: it keeps the cluster unchanged, and a cap alone never makes it grow. A rule is unchanged if
    no other of the policies has a rule for its setting. A merged rule fires only if the budgets of all its policies
    allow it, so the strictest holds; requests made meanwhile are carried out later.

    Args:
        policies: At least two policies.

    Raises:
        PolicyError: Fewer than two policies are given; at `attach`, if none of them sets anything, or two set the same
            value on different terms (another batch size to keep, another ramp).

    Cost:
        One float of state for each rule that is merged, no message.

    On rescale:
        The requests of policies stand.
    """
    return _combined("at_most", policies, choose=lambda one, other, now: minimum(_or(one, now), _or(other, now)))


def at_least(*policies: Policy) -> Policy:
    """For each setting for which several of these policies have rules, the largest number that any of them requests.

    Everything else is as for `at_most`.
    """
    return _combined("at_least", policies, choose=lambda one, other, now: maximum(_or(one, now), _or(other, now)))


def first(*policies: Policy) -> Policy:
    """For each setting for which several of these policies have rules, the number of the first policy with a request.

    An earlier policy has priority from its first request on, because requests stand. Everything else is as for
    `at_most`.
    """
    return _combined("first", policies, choose=lambda one, other, now: _or(one, other))


def _or(wish: Signal, otherwise: Signal) -> Signal:
    return where(is_finite(wish), wish, otherwise)


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
    """One rule for each setting that several set, and the other rules unchanged, in the order of the policies."""
    contested: dict[tuple[Setting, str], list[Rule]] = {}
    for one in rules:
        setting = setting_of(one.action)
        # Only rules that act can contradict each other; one event (a step, a rescale) is settled apart from the other.
        if setting is not None and one.mode == "acting":
            contested.setdefault((setting, one.trigger.event), []).append(one)
    if not contested:
        raise PolicyError(
            f"{name}: none of these policies rescales or sets a batch size or a learning rate, so there is nothing to "
            "choose from; list them, or write kf.compose(...)"
        )
    # The merged rule takes the place of the first of its group, and the others go.
    groups = [tuple(group) for group in contested.values() if len(group) > 1]
    chosen = {id(group[0]): merged_rule(name, group, choose=choose) for group in groups}
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
