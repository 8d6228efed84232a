"""The whole plan as text, stage by stage, in the user's names, with the costs; and as JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kungfu.compiler.compiled_policies import CompiledPolicies, MessageLayout, Segment
from kungfu.compiler.explain.labels import Labels, does, is_plain, labels_of, made, steps, where
from kungfu.compiler.explain.units import units_of
from kungfu.control import Budget, Rule
from kungfu.control.rule import RuleMode
from kungfu.monitor import straggler_fractions
from kungfu.signal import NEST, Collective, Constant, Fold, Signal, topological
from kungfu.slowness import SLOW

_MEASURED_BY = f"monitor.{straggler_fractions.__name__}"  # this monitor determines which peers leave first
Monitors = Literal["folded", "open"]
_FLOAT_BYTES = 4
_STATE_BYTES = {"bool": 1, "int64": 8, "float32": 4}


@dataclass(frozen=True)
class _Words:
    """The state of writing an explanation: the labels and units of all nodes, and the nodes hidden or already shown."""

    labels: Labels
    units: Mapping[Signal, str]
    folding: Folding
    shown: set[Signal]


def explain(plan: CompiledPolicies, *, monitors: Monitors = "folded") -> str:
    """A plan as text: the requests of the rules, the nodes of each stage, the piggybacked values, and the cost per
    step.

    The label of a node is its name, else its variable in the policy, else a number; leaves, and functions of step and
    size alone, are shown as expressions. Each line shows the node's expression, placement and dtype, its unit if the
    sources imply one, and the policy's line that created the node. The text also lists the nodes that several policies
    share; each of these nodes is computed only once.

    Args:
        monitors: "folded" shows each monitor as one line with its number of nodes; "open" shows all these nodes.

    Returns:
        Lines, each with its line ending.
    """
    labels, folding = labels_of(plan), folding_of(plan) if monitors == "folded" else Folding()
    words = _Words(labels, units_of(labels), folding, {*folding.hidden})
    return "\n".join(_lines(plan, words)) + "\n"


def _lines(plan: CompiledPolicies, words: _Words) -> Iterator[str]:
    for rule in (*plan.rules, *plan.on_rescale):
        yield from _rule_lines(rule, words)
    for rules, nodes in shared_parts(plan).items():
        yield _shared(rules, nodes, words.labels)
    yield from leave_first(plan)
    yield "reads"
    yield from (f"  {one}" for one in _reads(plan))
    yield "before the gradient all-reduce"
    yield from _stage(plan.before, words)
    yield f"rides on the gradient all-reduce: {_length(plan.piggybacked)}"
    yield from _riders(plan, words)
    yield "after the gradient all-reduce"
    yield from _stage(plan.after, words)
    yield "costs"
    yield from (f"  {one}" for one in cost_lines(plan))


def _riders(plan: CompiledPolicies, words: _Words) -> Iterator[str]:
    """Yields the lines of the collectives on the gradient all-reduce; a monitor shown as one node has one line."""
    for monitor, hidden in words.folding.under.items():
        scalars = tuple(one for one in plan.piggybacked.scalars if one in hidden)
        vectors = tuple(one for one in plan.piggybacked.vectors if one in hidden)
        if scalars or vectors:
            yield f"  {_length(MessageLayout(scalars, vectors))} of {words.labels[monitor]}"
    for one in plan.piggybacked.collectives:
        if one not in words.folding.hidden:
            yield f"  {_node(one, words)}"


def _rule_lines(rule: Rule, words: _Words) -> Iterator[str]:
    """The lines of a rule; for a rule on a rescale, also the lines of its nodes, as no stage of a step shows them."""
    labels, is_of_step = words.labels, rule.trigger.event == "step"
    steps_or_barriers = steps((rule.gate,), labels) if is_of_step else "in every barrier in which the size changes"
    yield f"rule {rule.name}{where(rule.origin)}{MODES[rule.mode]}"
    yield f"  looks {steps_or_barriers}"
    yield f"  fires where {labels[rule.fires]}: {does(rule.action, labels)}"
    if is_of_step and rule.mode == "acting":
        yield from (f"  {bound_of(owner, one)}" for owner, one in rule.budgets.items())
    logged = [name if labels[one] == name else f"{name} {labels[one]}" for name, one in rule.inputs.items()]
    yield f"  logs {', '.join(logged) or 'nothing'}"
    for node in () if is_of_step else topological(rule.roots):
        if not is_plain(node) and node not in words.shown:
            words.shown.add(node)
            yield f"    {_node(node, words)}"


def bound_of(owner: str, budget: Budget) -> str:
    """A budget as a line, with the name of the policy that has it."""
    limit = f"budget of {owner}: {_refilled(budget.rescales, 'rescale', budget.per_steps)}"
    if budget.replacements is None:
        return limit
    return f"{limit}; apart from them {_refilled(budget.replacements, 'replacement', budget.per_steps)}"


def _refilled(tokens: int, noun: str, steps: int) -> str:
    return f"{counted(tokens, noun)}, and one more every {counted(math.ceil(steps / tokens), 'step')}"


MODES: Mapping[RuleMode, str] = {
    "acting": "",
    "shadow": ", a shadow: nothing acts on it",
    "held": ", which records that a rule is held back: nothing acts on it",
}


def leave_first(plan: CompiledPolicies) -> Iterator[str]:
    """The line about the peers that leave first, if a policy measures speeds."""
    if plan.straggler_fractions is not None:
        yield f"when the job shrinks, peers below {SLOW} of the median speed leave first, by {_MEASURED_BY}"


def _shared(rules: Sequence[str], nodes: Sequence[Signal], labels: Labels) -> str:
    tops = tops_of(nodes)
    below = len(nodes) - len(tops)
    under = f", and {counted(below, 'node')} under " + ("it" if len(tops) == 1 else "them") if below else ""
    return f"{' and '.join(rules)} share {', '.join(labels[one] for one in tops)}{under}"


def _reads(plan: CompiledPolicies) -> Iterator[str]:
    for name, kind in plan.source_kinds.items():
        unit = f", {kind.unit}" if kind.unit else ""
        yield f"{name}: {kind.placement} {kind.type}{unit}; {kind.meaning}"


def _stage(segments: tuple[Segment, ...], words: _Words) -> Iterator[str]:
    """Yields the lines of a stage; a node that an earlier segment shows is omitted, even if it is computed again."""
    for segment in segments:
        nodes = [one for one in segment.nodes if one not in words.shown and not is_plain(one)]
        words.shown.update(nodes)
        if nodes or segment.message:
            yield f"  {steps(segment.gates, words.labels)}"
        yield from (f"    {_node(one, words)}" for one in nodes)
        if segment.message:
            yield f"    one message of {_length(segment.message)}"
            sent = (one for one in segment.message.collectives if one not in words.folding.hidden)
            yield from (f"      {_node(one, words)}" for one in sent)


def _node(node: Signal, words: _Words) -> str:
    unit = f", {words.units[node]}" if words.units[node] else ""
    hidden = words.folding.under.get(node)
    how = f"monitor.{node.monitor}, {counted(len(hidden) + 1, 'node')}" if hidden else made(node, words.labels)
    return f"{words.labels[node]} = {how}: {node.placement} {node.type}{unit}{where(node.origin)}"


# ---- costs -----------------------------------------------------------------------------------------------------------


def _costs_of(plan: CompiledPolicies) -> dict[str, int]:
    """The costs of a plan per step, beyond the gradients: messages, floats, and the bytes of states at size 1."""
    fields = [one.type for fold in plan.folds for one in fold.recurrence.updates]
    return {
        "messages_per_step": plan.messages_per_step,
        "gated_messages": sum(1 for one in plan.after if one.message and one.gates),
        "fixed_floats": len(plan.piggybacked.scalars),
        "floats_per_peer": len(plan.piggybacked.vectors),  # on the gradient all-reduce, like the fixed floats
        "state_bytes": sum(_STATE_BYTES[one.dtype] * math.prod(one.extents(1)) for one in fields),
        "folds": len(plan.folds),
    }


def cost_lines(plan: CompiledPolicies) -> Iterator[str]:
    """The lines about the costs of a plan per step."""
    costs = _costs_of(plan)
    yield f"{counted(costs['messages_per_step'], 'extra message')} per step"
    if costs["gated_messages"]:
        yield f"{counted(costs['gated_messages'], 'small message')} more in the steps of their gates"
    yield f"{_length(plan.piggybacked)} per step on the gradient all-reduce"
    yield f"{counted(costs['state_bytes'], 'byte')} of state in {counted(costs['folds'], 'fold')}"


def _length(layout: MessageLayout) -> str:
    """The size of a message in floats and bytes, as text; with vectors, a formula in the size of the cluster."""
    fixed, growing = len(layout.scalars), len(layout.vectors)
    if not growing:
        return f"{counted(fixed, 'float')} ({counted(fixed * _FLOAT_BYTES, 'byte')})"
    return f"{fixed} + {growing} x size floats ({fixed * _FLOAT_BYTES} + {growing * _FLOAT_BYTES} x size bytes)"


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


# ---- for programs ----------------------------------------------------------------------------------------------------


def explain_json(plan: CompiledPolicies) -> dict[str, Any]:
    """The plan as a document for programs.

    Returns:
        An object with the keys `rules`, `shared`, `leave_first`, `reads`, `nodes`, `before`, `rides`, `after` and
        `costs`. Nodes are identified by the labels of the text; `before` and `after` are the segments in order, each
        with its gates, its nodes and the contents of its message. `leave_first` describes the peers that leave before
        the newest peers when the job shrinks: their speed, `measured_by` a monitor, is `below` a fraction of the median
        speed. It is `null` if no policy measures speeds.

    >>> from kungfu.compiler import compile_policies
    >>> from kungfu.policies import gns_batch
    >>> explain_json(compile_policies([gns_batch(max_peers=8)]))["costs"]["messages_per_step"]
    0
    """
    labels = labels_of(plan)
    return {
        "rules": [_rule(one, labels) for one in (*plan.rules, *plan.on_rescale)],
        "shared": [{"by": list(by), "nodes": _names(nodes, labels)} for by, nodes in shared_parts(plan).items()],
        "leave_first": None if plan.straggler_fractions is None else {"below": SLOW, "measured_by": _MEASURED_BY},
        "reads": {
            name: {"placement": kind.placement, "type": str(kind.type), "unit": kind.unit, "meaning": kind.meaning}
            for name, kind in plan.source_kinds.items()
        },
        "nodes": list(_nodes(labels)),
        "before": [_segment(one, labels) for one in plan.before],
        "rides": _names(plan.piggybacked.collectives, labels),
        "after": [_segment(one, labels) for one in plan.after],
        "costs": _costs_of(plan),
    }


def _rule(rule: Rule, labels: Labels) -> dict[str, Any]:
    return {
        "name": rule.name,
        "occasion": rule.trigger.event,
        "standing": rule.mode,
        "gates": _gates((rule.gate,), labels),
        "fires": labels[rule.fires],
        "does": does(rule.action, labels),
        "budgets": {owner: asdict(one) for owner, one in rule.budgets.items()},
        "logs": {name: labels[one] for name, one in rule.inputs.items()},
        "origin": rule.origin,
    }


def _nodes(labels: Labels) -> Iterator[dict[str, str]]:
    units = units_of(labels)
    for node, label in labels.items():
        if not is_plain(node):
            yield {
                "label": label,
                "made": made(node, labels),
                "placement": node.placement,
                "type": str(node.type),
                "unit": units[node],
                "origin": node.origin,
                "monitor": node.monitor,
            }


def _segment(segment: Segment, labels: Labels) -> dict[str, Any]:
    nodes = [one for one in segment.nodes if not is_plain(one)]
    message = segment.message or MessageLayout()
    return {
        "gates": _gates(segment.gates, labels),
        "nodes": _names(nodes, labels),
        "message": _names(message.collectives, labels),
    }


def _gates(gates: Iterable[Signal], labels: Labels) -> list[str]:
    return [labels[one] for one in gates if not isinstance(one, Constant)]


def _names(nodes: Iterable[Signal], labels: Labels) -> list[str]:
    return [labels[one] for one in nodes]


# ---- groups: nodes that only a monitor uses, and nodes that several policies share -----------------------------------


@dataclass(frozen=True)
class Folding:
    """The nodes that an explanation omits (`hidden`), and the hidden nodes below each monitor shown (`under`)."""

    hidden: frozenset[Signal] = frozenset()
    under: Mapping[Signal, frozenset[Signal]] = field(default_factory=dict)


def folding_of(plan: CompiledPolicies) -> Folding:
    """The `Folding` that shows each monitor as one node; nodes that the policy also uses elsewhere are not hidden."""
    # The nodes below each monitor.
    nodes = topological((*plan.nodes, *_roots(plan)))
    inside = {node: frozenset(topological(node.inputs)) for node in nodes if node.monitor}
    within = {one for below in inside.values() for one in below}
    # The nodes that no monitor needs and the direct inputs of rules are shown.
    shown = {node for node in nodes if node not in within} | (set(_roots(plan)) & within)
    # An input of a shown node is shown too, unless the node is a monitor.
    while more := {one for node in shown if not node.monitor for one in node.inputs if one not in shown}:
        shown |= more
    hidden = frozenset(one for one in within - shown if not is_plain(one))
    return Folding(hidden, {node: hidden & below for node, below in inside.items() if node in shown})


def _roots(plan: CompiledPolicies) -> Iterator[Signal]:
    for rule in (*plan.rules, *plan.on_rescale):
        yield from rule.roots
    yield from plan.watched_signals.values()


def shared_parts(plan: CompiledPolicies) -> Mapping[tuple[str, ...], Sequence[Signal]]:
    """The costly nodes (see `_dear`) that several rules need, grouped by the names of these rules."""
    dear = _dear(plan)
    owners: dict[Signal, list[str]] = {}
    for name, roots in _parts(plan).items():
        for node in topological(roots):
            if node in dear:
                owners.setdefault(node, []).append(name)
    together: dict[tuple[str, ...], list[Signal]] = {}
    for node in plan.nodes:
        if len(owners.get(node, ())) > 1:
            together.setdefault(tuple(owners[node]), []).append(node)
    return together


def tops_of(nodes: Sequence[Signal]) -> list[Signal]:
    """The nodes that no other node of these needs."""
    inner = {one for node in nodes for one in node.inputs}
    return [node for node in nodes if node not in inner]


def _dear(plan: CompiledPolicies) -> set[Signal]:
    """The costly nodes: folds, messages, and nodes computed from these or from the gradients; the rest is cheap."""
    dear: set[Signal] = set()
    for node in plan.nodes:
        # Folds, messages, and the nodes that depend on one of these or on the gradients.
        below = any(one in dear or one.type.shape == NEST for one in node.inputs)
        if isinstance(node, (Fold, Collective)) or below:
            dear.add(node)
    return dear


def _parts(plan: CompiledPolicies) -> Mapping[str, tuple[Signal, ...]]:
    """The signals that each policy needs; a merged rule contributes each candidate under the candidate's name."""
    parts: dict[str, tuple[Signal, ...]] = {}
    for rule in plan.rules:
        if rule.mode == "held":  # the twin of another rule
            continue
        requests = [name for name in rule.candidates if name in rule.inputs]
        for name in requests or [rule.name]:
            roots = (rule.inputs[name],) if requests else rule.roots
            parts[name] = (*parts.get(name, ()), *roots)
    return parts
