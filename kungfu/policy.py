"""Policies: pure functions from the signals of a step to rules, and how several share one cluster."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kungfu.control import Action, Budget, Call, Rescale, Rule, Trigger
from kungfu.control.ask import rescale_rule
from kungfu.control.rule import distinct_name
from kungfu.errors import PolicyError
from kungfu.ops import is_finite, minimum, where
from kungfu.signal import Constant, Signal, Source, TrainingSignals

__all__ = ["Action", "Budget", "Call", "Policy", "Rescale", "Rule", "at_most", "first", "policy"]

Rules = Rule | tuple[Rule, ...]


@dataclass(frozen=True)
class Policy:
    """A named, pure function from the signals of a step to rules."""

    name: str
    body: Callable[[TrainingSignals], Rules]

    def build(self, training: TrainingSignals) -> tuple[Rule, ...]:
        """The rules of this policy, each under the policy's name."""
        given = self.body(training)
        rules = given if isinstance(given, tuple) else (given,)
        for rule in rules:
            if not isinstance(rule, Rule):
                raise PolicyError(
                    f"policy {self.name!r} gave {rule!r}; it must return a rule or a tuple of rules, "
                    "as in `return control.every(50).rescale(peers)`"
                )
        return rules


def policy(function: Callable[..., Rules]) -> Callable[..., Policy]:
    """Makes a policy out of a function of `training`: calling it with its other arguments gives a `Policy`.

    The arguments are checked at once, the function runs at `attach`.

    >>> from kungfu import control
    >>> @policy
    ... def two_peers(training, *, every):
    ...     return control.every(every).rescale(2)
    >>> two_peers(every=10).name
    'two_peers'
    """
    signature = inspect.signature(function)
    name = function.__name__
    if "training" not in list(signature.parameters)[:1]:
        raise PolicyError(f"@policy {name}{signature}: the first parameter must be `training`, the signals of a step")

    @functools.wraps(function)
    def configured(*args: Any, **kwargs: Any) -> Policy:
        try:
            signature.bind(None, *args, **kwargs)
        except TypeError as error:
            shown = ", ".join(str(one) for one in list(signature.parameters.values())[1:])
            raise PolicyError(f"{name}: {error}; it takes ({shown})") from error

        def body(training: TrainingSignals) -> Rules:
            given = function(training, *args, **kwargs)
            rules = given if isinstance(given, tuple) else (given,)
            return tuple(replace(one, name=name) if isinstance(one, Rule) else one for one in rules)

        return Policy(name, body)

    return configured


def at_most(*policies: Policy) -> Policy:
    """The smallest size that any of these policies wants.

    What each policy last asked for stands as its wish until it asks again; in every step the cluster is moved to the
    smallest wish, so a policy that asked while a change was pending is served later. A policy that has not asked yet
    stands for the size that is: it holds the cluster where it is, and a cap alone never makes it grow. Rules that do
    not rescale pass through. Raises `PolicyError` at `attach` where the policies keep different batch sizes. Cost: one
    float of state a policy, no message.

    >>> from kungfu.policies import gns_batch, schedule
    >>> at_most(gns_batch(max_peers=8), schedule({300: 2})).name
    'at_most(gns_batch, schedule)'
    """
    return _combined("at_most", policies, choose=_smaller)


def first(*policies: Policy) -> Policy:
    """The size wanted by the first of these policies that wants any: the earlier one has priority.

    Wishes stand as for `at_most`; a policy that has not asked yet leaves the word to the next one. Rules that do not
    rescale pass through. Raises `PolicyError` at `attach` where the policies keep different batch sizes. Cost: one
    float of state a policy, no message.

    >>> from kungfu.policies import gns_batch, schedule
    >>> first(schedule({300: 2}), gns_batch(max_peers=8)).name
    'first(schedule, gns_batch)'
    """
    return _combined("first", policies, choose=lambda one, other: where(is_finite(one), one, other))


def _smaller(one: Signal, other: Signal) -> Signal:
    size = Source("size")
    return minimum(where(is_finite(one), one, size), where(is_finite(other), other, size))


def _combined(rule: str, policies: tuple[Policy, ...], *, choose: Callable[[Signal, Signal], Signal]) -> Policy:
    for one in policies:
        if not isinstance(one, Policy):
            raise PolicyError(f"{rule}({one!r}): takes policies, as in {rule}(gns_batch(max_peers=8), schedule(...))")
    if len(policies) < 2:
        raise PolicyError(f"{rule}: takes at least two policies, got {len(policies)}")
    name = f"{rule}({', '.join(one.name for one in policies)})"

    def body(training: TrainingSignals) -> tuple[Rule, ...]:
        rules = tuple(one for part in policies for one in part.build(training))
        return _merged(name, rules, choose=choose)

    return Policy(name, body)


def _merged(name: str, rules: tuple[Rule, ...], *, choose: Callable[[Signal, Signal], Signal]) -> tuple[Rule, ...]:
    """One rule for all that rescale, and the others as they are."""
    rescaling = [one for one in rules if isinstance(one.action, Rescale)]
    others = tuple(one for one in rules if not isinstance(one.action, Rescale))
    if not rescaling:
        raise PolicyError(f"{name}: none of these policies rescales, so there is nothing to choose from; list them")
    keeps = {one.action.keep: one.name for one in rescaling if isinstance(one.action, Rescale)}
    if len(keeps) > 1:
        asked = ", ".join(f"{policy} keeps {keep}" for keep, policy in keeps.items())
        raise PolicyError(f"{name}: {asked}; policies that share a cluster must keep the same batch size")
    wishes = _wishes(rescaling)
    always = Trigger(Constant(True), Constant(True))
    chosen = functools.reduce(choose, wishes.values())
    merged = rescale_rule(chosen, trigger=always, keep=next(iter(keeps)), name=name)
    last = {label: merged.saw[label] for label in ("size", "target")}
    seen = {label: signal for one in rescaling for label, signal in one.saw.items() if label not in last}
    return (replace(merged, saw={**seen, **wishes, **last}), *others)


def _wishes(rules: list[Rule]) -> dict[str, Signal]:
    """By policy, the last finite target of each rule, whether or not it could be served."""
    wishes: dict[str, Signal] = {}
    for one in rules:
        if isinstance(one.action, Rescale):
            standing = one.action.target.hold(when=Trigger(one.gate, one.when))
            wishes[distinct_name(one.name, taken=wishes)] = standing
    return wishes
