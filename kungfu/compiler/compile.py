"""From policies to a plan: build, check, simplify, schedule, fuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kungfu.compiler.passes import check, schedule, simplify
from kungfu.compiler.plan import Plan
from kungfu.control import Call, Rescale, Rule
from kungfu.control.rule import distinct_name
from kungfu.policy import Policy
from kungfu.signal import Signal, Source, TrainingSignals, topological
from kungfu.signal.operation import SCALAR

__all__ = ["compile_policies"]


def compile_policies(policies: Sequence[Policy]) -> Plan:
    """The plan of these policies together: checked, equal nodes shared, staged, collectives fused.

    Pure and the same on every peer. Raises `PolicyError` where a policy is wrong: an action or trigger on a local
    signal, a collective under a gate that peers could see differently, two policies that rescale without a rule
    between them.

    >>> from kungfu.policies import gns_batch
    >>> compile_policies([gns_batch(max_peers=8)]).messages_per_step
    0
    """
    training = TrainingSignals()
    built = [(policy.name, policy.build(training)) for policy in policies]
    check(built)
    rules = _distinct(rule for _, group in built for rule in group)
    signals = tuple(signal for rule in rules for signal in _signals(rule))
    shared = simplify(signals)
    planned = tuple(_rewired(rule, shared=shared) for rule in rules)
    watched = _watched(signals, shared=shared)
    return schedule(planned, watched=watched)


def _distinct(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules under names that differ."""
    given: dict[str, Rule] = {}
    for rule in rules:
        name = distinct_name(rule.name, taken=given)
        given[name] = replace(rule, name=name)
    return tuple(given.values())


def _signals(rule: Rule) -> Iterator[Signal]:
    yield from (rule.gate, rule.when, rule.fires)
    if isinstance(rule.action, Rescale):
        yield rule.action.target
    else:
        yield from rule.action.signals
    yield from rule.saw.values()


def _rewired(rule: Rule, *, shared: Mapping[Signal, Signal]) -> Rule:
    """The rule over the shared nodes."""
    action = rule.action
    if isinstance(action, Rescale):
        action = replace(action, target=shared[action.target])
    else:
        action = Call(action.fn, tuple(shared[one] for one in action.signals))
    saw = {name: shared[one] for name, one in rule.saw.items() if _is_loggable(one)}
    return Rule(rule.name, shared[rule.gate], shared[rule.when], shared[rule.fires], action, saw)


def _watched(signals: Iterable[Signal], *, shared: Mapping[Signal, Signal]) -> dict[str, Signal]:
    """The named signals, each once; two different ones under one name are told apart by a number."""
    watched: dict[str, Signal] = {}
    for node in topological(signals):
        if node.name and not isinstance(node, Source) and _is_loggable(node):
            canonical = shared[node]
            if not any(canonical is one for one in watched.values()):
                watched[distinct_name(node.name, taken=watched)] = canonical
    return watched


def _is_loggable(signal: Signal) -> bool:
    return signal.placement == "agreed" and signal.type.shape == SCALAR
