"""Simplify: constant folding and common subexpression elimination, so that two policies share one noise scale.

One walk in topological order. Each node is rebuilt with the representatives of its inputs, replaced by its value if all
inputs are constants, and looked up by a structural key (value numbering): two nodes with the same key compute the same
value in every step, on every peer. Folds, the nodes with state, are shared as well if their recurrences, inputs, gates
and behaviour on a rescale are equal, since their states are then equal.

Invariants: the types and placements of nodes do not change; no two nodes of a result share a key; no `Map` of a result
has only constant operands.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from kungfu.signal import Collective, Constant, Fold, Map, Placeholder, Recurrence, Signal, Source, topological


def simplify(roots: Iterable[Signal]) -> Mapping[Signal, Signal]:
    """The representative of every node under the roots: one node for all nodes that compute the same value."""
    shared: dict[Signal, Signal] = {}
    known: dict[Hashable, Signal] = {}
    for node in topological(roots):
        # The first node with a key represents all later ones; the representatives of its inputs are known.
        rebuilt = _folded(_without_neutral(with_shared_inputs(node, shared=shared)))
        shared[node] = known.setdefault(_key(rebuilt), rebuilt)
    return shared


def with_shared_inputs(node: Signal, *, shared: Mapping[Signal, Signal]) -> Signal:
    """The node, with its inputs replaced by their representatives in `shared`."""
    if isinstance(node, Map):
        return replace(node, operands=tuple(shared[one] for one in node.operands))
    if isinstance(node, Collective):
        return replace(node, operand=shared[node.operand])
    if isinstance(node, Fold):
        return replace(node, observed=tuple(shared[one] for one in node.observed), gate=shared[node.gate])
    if isinstance(node, Source):
        return replace(node, owner=None)  # checked before, and not part of a plan
    return node


def _without_neutral(node: Signal) -> Signal:
    """The operand `x` of a map that always equals `x`, else the node; triggers without a condition create such maps.

    Returns:
        `x` for ``x - 0``, ``x + -0.0``, ``x * 1``, ``x / 1`` and ``x ** 1``, which preserve NaN, infinities and -0.0 to
        the last bit; also for ``x // 1`` and ``x + 0`` of whole numbers, and for ``True & x``. Other maps are
        unchanged: ``x + 0.0`` turns -0.0 into 0.0, ``0 * x`` turns infinity into NaN, and ``x * 1.0`` turns a whole
        number into a float.
    """
    if not isinstance(node, Map):
        return node
    name, operands = node.operation.name, node.operands
    constants = [one.value if isinstance(one, Constant) else None for one in operands]
    stays: Signal = node
    if name == "not" and isinstance(operands[0], Map) and operands[0].operation.name == "not":
        stays = operands[0].operands[0]
    elif name == "where" and (operands[1] is operands[2] or constants[0] is not None):
        stays = operands[2 if constants[0] is False else 1]
    elif name in _ABSORBING and _ABSORBING[name] in constants:
        stays = operands[constants.index(_ABSORBING[name])]
    elif (neutral := _NEUTRAL.get(f"{name}.{node.type.dtype}", _NEUTRAL.get(name))) is not None and _is(
        constants[1], neutral, node
    ):
        stays = operands[0]
    elif name in _COMMUTATIVE and _is(constants[0], _NEUTRAL[name], node):
        stays = operands[1]
    return stays if stays.type == node.type and stays.placement == node.placement else node


# The second operand that leaves the first operand unchanged to the last bit, or, in commutative operations, vice versa;
# by the operation, or by the operation and its dtype.
_NEUTRAL = {
    "add": -0.0, "subtract": 0.0, "multiply": 1, "divide": 1, "floor_divide.int64": 1, "power": 1, "and": True,
    "or": False,
}  # fmt: skip
_COMMUTATIVE = {"add", "multiply", "and", "or"}
# The constant that is the result for every other operand.
_ABSORBING = {"and": False, "or": True}


def _is(constant: bool | int | float | None, number: float, node: Signal) -> bool:
    """True if `constant` equals `number` exactly, both in the dtype of the map `node`; 0.0 and -0.0 differ."""
    if constant is None:
        return False
    given, wanted = (np.asarray(one, node.type.dtype).item() for one in (constant, number))
    return repr(given) == repr(wanted)


def _folded(node: Signal) -> Signal:
    """A map whose operands are all constants, replaced by its result as a constant; any other node unchanged."""
    if not isinstance(node, Map) or not all(isinstance(one, Constant) for one in node.operands):
        return node
    # Folding in the types of the graph computes the same value as the step.
    values = [one.value for one in node.operands if isinstance(one, Constant)]
    result = node.operation.evaluate(values, tuple(one.type for one in node.operands))
    return Constant(result.item(), name=node.name, origin=node.origin)


def _key(node: Signal) -> Hashable:
    """A key made of a node's operation and the identities of its shared inputs; equal nodes have equal keys."""
    if isinstance(node, Source):
        return ("source", node.source)
    if isinstance(node, Constant):
        return ("constant", type(node.value), repr(node.value))  # the text, since NaN does not equal itself
    if isinstance(node, Map):
        return ("map", node.operation, tuple(map(id, node.operands)))
    if isinstance(node, Collective):
        return ("collective", node.reduction, id(node.operand))
    if isinstance(node, Fold):
        # Folds share their state only if they run in the same steps and behave alike on a rescale.
        inside = _recurrence_key(node.recurrence)
        return ("fold", tuple(map(id, node.observed)), inside, id(node.gate), node.on_rescale)
    return id(node)


def _recurrence_key(recurrence: Recurrence) -> Hashable:
    """A key for the computation inside a fold: a list with each node's kind and the list indices of its inputs."""
    results = (*recurrence.updates, recurrence.output)
    lines: dict[Hashable, int] = {}
    line_of: dict[Signal, int] = {}
    for node in topological(results):
        # Value numbering inside the recurrence; placeholders are compared by index.
        inputs = tuple(line_of[one] for one in node.inputs)
        line_of[node] = lines.setdefault((_head(node), inputs), len(lines))
    starts = tuple((type(one), repr(one)) for one in recurrence.init)
    return (starts, recurrence.reads, tuple(lines), tuple(line_of[one] for one in results))


def _head(node: Signal) -> Hashable:
    if isinstance(node, Placeholder):
        return (node.kind, node.index, node.of)
    return node.operation if isinstance(node, Map) else _key(node)
