"""Folding: finds the nodes of a plan that only monitors use, and that need not be shown one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kungfu.compiler.compiled_policies import CompiledPolicies
from kungfu.compiler.explain.labels import is_plain
from kungfu.signal import Signal, topological


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
