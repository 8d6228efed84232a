"""Sharing: the nodes that several policies need and the plan computes once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kungfu.compiler.compiled_policies import CompiledPolicies
from kungfu.signal import NEST, Collective, Fold, Signal, topological


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
