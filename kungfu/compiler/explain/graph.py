"""A plan as a graph for people: from sources, through monitors and named values, to rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kungfu.compiler.compiled_policies import CompiledPolicies
from kungfu.compiler.explain.explanation import folding_of
from kungfu.compiler.explain.labels import Labels, does, is_number, is_plain, labels_of, made
from kungfu.compiler.explain.units import units_of
from kungfu.control import Rule
from kungfu.signal import Collective, Fold, Signal, Source

GraphKind = Literal["source", "monitor", "fold", "collective", "value", "rule"]


@dataclass(frozen=True)
class GraphNode:
    """A node of the graph.

    Args:
        label: The text by which a node is named, as in ``kungfu explain``.
        kind: The role in the plan, such as "source", "monitor" or "rule".
        how: The expression of the node, or the request of the rule.
        placement: ``local`` or ``agreed``; empty for a rule.
        inputs: The indices of the node's inputs in the result of `graph_of`.
    """

    label: str
    kind: GraphKind
    how: str
    placement: str
    unit: str
    inputs: tuple[int, ...]


def graph_of(plan: CompiledPolicies) -> tuple[GraphNode, ...]:
    """The graph of a plan's sources, monitors, named values and rules; unnamed arithmetic is part of nodes that use it.

    Returns:
        The nodes, each after its inputs.

    >>> from kungfu.compiler import compile_policies
    >>> from kungfu.policies import gns_batch
    >>> nodes = graph_of(compile_policies([gns_batch(max_peers=8)]))
    >>> [(one.label, one.kind) for one in nodes if one.kind in ("monitor", "rule")]
    [('noise_scale', 'monitor'), ('estimate', 'monitor'), ('gns_batch', 'rule')]
    """
    labels, folding = labels_of(plan), folding_of(plan)
    units, indices, nodes = units_of(labels), dict[Signal, int](), list[GraphNode]()
    for node in labels:
        if node in folding.hidden or not _is_drawn(node, labels[node]):
            continue
        inputs = tuple(dict.fromkeys(indices[one] for under in node.inputs for one in _nearest(under, indices)))
        how = f"monitor.{node.monitor}" if node.monitor else ""
        how = node.kind.meaning if isinstance(node, Source) else how or made(node, labels)
        indices[node] = len(nodes)
        label = node.monitor if is_number(labels[node]) else labels[node]
        nodes.append(GraphNode(label, _kind(node), how, node.placement, units[node], inputs))
    # A rule in mode "held" is the twin of another rule.
    rules = [rule for rule in (*plan.rules, *plan.on_rescale) if rule.mode != "held"]
    nodes += [_rule(rule, labels, indices) for rule in rules]
    return _used(nodes)


def _is_drawn(node: Signal, label: str) -> bool:
    """True if a node is drawn separately: sources, monitors, and nodes named by the policy."""
    if isinstance(node, Source) or node.monitor:
        return True
    return not is_plain(node) and not is_number(label)


def _kind(node: Signal) -> GraphKind:
    if isinstance(node, Source):
        return "source"
    if node.monitor:
        return "monitor"
    return "fold" if isinstance(node, Fold) else "collective" if isinstance(node, Collective) else "value"


def _rule(rule: Rule, labels: Labels, indices: dict[Signal, int]) -> GraphNode:
    found = (one for root in rule.roots for one in _nearest(root, indices))
    kind = "" if rule.mode == "acting" else f" ({rule.mode})"
    how = f"fires where {labels[rule.fires]}: {does(rule.action, labels)}"
    return GraphNode(f"{rule.name}{kind}", "rule", how, "", "", tuple(dict.fromkeys(indices[one] for one in found)))


def _nearest(node: Signal, indices: dict[Signal, int]) -> Iterator[Signal]:
    """The node if it is shown, else the nearest shown nodes among its inputs."""
    seen, waiting = set[Signal](), [node]
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        if one in indices:
            yield one
        else:
            waiting += one.inputs


def _used(nodes: list[GraphNode]) -> tuple[GraphNode, ...]:
    """The nodes that some rule needs; nodes that only a message or a status line needs are not drawn."""
    wanted = {index for index, one in enumerate(nodes) if one.kind == "rule"}
    for index in reversed(range(len(nodes))):
        if index in wanted:
            wanted |= {*nodes[index].inputs}
    order = {index: new for new, index in enumerate(sorted(wanted))}
    kept = (nodes[index] for index in order)
    return tuple(replace(one, inputs=tuple(order[at] for at in one.inputs)) for one in kept)
