"""Groups of the nodes of a plan: nodes that only a monitor uses, and nodes that several policies share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kungfu.compiler.compiled_policies import CompiledPolicies
from kungfu.compiler.explain.labels import is_plain
from kungfu.signal import NEST, Collective, Fold, Signal, topological


@dataclass(frozen=True)
class Folding:
    """The `hidden` nodes, and the hidden nodes of each monitor that is shown."""

    hidden: frozenset[Signal] = frozenset()
    under: Mapping[Signal, frozenset[Signal]] = field(default_factory=dict)


def folding_of(plan: CompiledPolicies) -> Folding:
    """The nodes to omit if each monitor is shown as one node, except nodes that the policy also uses elsewhere."""
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
    """The nodes shared by several rules, by name and in order, if they contain a fold, a message or a norm."""
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


def _dear(plan: CompiledPolicies) -> set[Signal]:
    """The nodes worth sharing; all other arithmetic costs next to nothing."""
    dear: set[Signal] = set()
    for node in plan.nodes:
        # Folds, messages, and the nodes that depend on one of these or on the gradients.
        below = any(one in dear or one.type.shape == NEST for one in node.inputs)
        if isinstance(node, (Fold, Collective)) or below:
            dear.add(node)
    return dear


def _parts(plan: CompiledPolicies) -> Mapping[str, tuple[Signal, ...]]:
    """The signals that each policy needs; a merged rule contributes each of its candidates under its own name."""
    parts: dict[str, tuple[Signal, ...]] = {}
    for rule in plan.rules:
        if rule.mode == "held":  # the twin of another rule
            continue
        requests = [name for name in rule.candidates if name in rule.inputs]
        for name in requests or [rule.name]:
            roots = (rule.inputs[name],) if requests else rule.roots
            parts[name] = (*parts.get(name, ()), *roots)
    return parts
