"""Simplify: constant folding and common subexpression elimination, so that two policies pay for one noise scale.

One walk in topological order. Each node is rebuilt over the nodes that stand for its inputs, folded where all its
inputs are constants, and looked up by a structural key (value numbering): two nodes with one key compute the same value
in every step, on every peer. Folds are shared as well, where their recurrences, inputs, gates and behaviour on a
rescale are equal, since they then go through the same states.

Invariants: the types and placements of nodes stay; a result has no two nodes with one key; no `Map` of it has constants
alone for operands.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

from kungfu.signal import Collective, Constant, Fold, Map, Placeholder, Recurrence, Signal, Source, topological


def simplify(roots: Iterable[Signal]) -> Mapping[Signal, Signal]:
    """For every node under the roots, the node that stands for it: one for all nodes that compute the same.

    Args:
        roots: The signals that rules and watched values need.

    Returns:
        The representative of each node, over representatives.
    """
    shared: dict[Signal, Signal] = {}
    known: dict[Hashable, Signal] = {}
    for node in topological(roots):
        # The first node with a key stands for all later ones; inputs come first, so theirs are known.
        rebuilt = _folded(_without_true(_rebuilt(node, shared=shared)))
        shared[node] = known.setdefault(_key(rebuilt), rebuilt)
    return shared


def _rebuilt(node: Signal, *, shared: Mapping[Signal, Signal]) -> Signal:
    """The same node over the shared inputs."""
    if isinstance(node, Map):
        return replace(node, operands=tuple(shared[one] for one in node.operands))
    if isinstance(node, Collective):
        return replace(node, operand=shared[node.operand])
    if isinstance(node, Fold):
        return replace(node, observed=tuple(shared[one] for one in node.observed), gate=shared[node.gate])
    if isinstance(node, Source):
        return replace(node, owner=None)  # checked by now, and no part of a plan
    return node


def _without_true(node: Signal) -> Signal:
    """``True & x`` is ``x``: what a trigger without a condition leaves behind."""
    if isinstance(node, Map) and node.operation.name == "and":
        rest = [one for one in node.operands if not (isinstance(one, Constant) and one.value is True)]
        return rest[0] if len(rest) == 1 and rest[0].type == node.type else node
    return node


def _folded(node: Signal) -> Signal:
    """The constant that a map of constants is; any other node as it is."""
    if not isinstance(node, Map) or not all(isinstance(one, Constant) for one in node.operands):
        return node
    # In the types of the graph, so that folding gives what the step would have computed.
    values = [one.value for one in node.operands if isinstance(one, Constant)]
    result = node.operation.evaluate(values, tuple(one.type for one in node.operands))
    return Constant(result.item(), name=node.name, origin=node.origin)


def _key(node: Signal) -> Hashable:
    """The structural key of a node over shared inputs; equal nodes have equal keys."""
    if isinstance(node, Source):
        # A leaf is known by its name.
        return ("source", node.source)
    if isinstance(node, Constant):
        return ("constant", type(node.value), repr(node.value))  # by its text: a NaN is not equal to itself
    if isinstance(node, Map):
        # An inner node is known by what it does and by its inputs, which are representatives: their identity decides.
        return ("map", node.operation, tuple(map(id, node.operands)))
    if isinstance(node, Collective):
        return ("collective", node.reduction, id(node.operand))
    if isinstance(node, Fold):
        # State is shared only where it moves in the same steps, and survives a rescale in the same way.
        inside = _recurrence_key(node.recurrence)
        return ("fold", tuple(map(id, node.observed)), inside, id(node.gate), node.on_rescale)
    return id(node)


def _recurrence_key(recurrence: Recurrence) -> Hashable:
    """The inside of a fold as a list: each node by what it is and the lines of its inputs."""
    results = (*recurrence.updates, recurrence.output)
    lines: dict[Hashable, int] = {}
    place: dict[Signal, int] = {}
    for node in topological(results):
        # Value numbering inside the recurrence, whose placeholders are equal by index and not by identity.
        inputs = tuple(place[one] for one in node.inputs)
        place[node] = lines.setdefault((_head(node), inputs), len(lines))
    starts = tuple((type(one), repr(one)) for one in recurrence.init)
    return (starts, recurrence.reads, tuple(lines), tuple(place[one] for one in results))


def _head(node: Signal) -> Hashable:
    if isinstance(node, Placeholder):
        return (node.kind, node.index, node.of)
    return node.operation if isinstance(node, Map) else _key(node)
