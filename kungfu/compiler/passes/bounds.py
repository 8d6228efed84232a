"""Bounds: a size that is asked for must lie between two, whatever the signals under it come to.

A forward data-flow analysis over the graph of the target, once for each side: a node is bounded where its operation
keeps the bounds of its operands (or needs only one of them, as ``minimum`` does for the upper side).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

from kungfu.compiler.passes.locality_errors import name_clause
from kungfu.errors import PolicyError
from kungfu.signal import Constant, Map, Signal, Source, topological

Side = Literal["lower", "upper"]
_SIZES = frozenset({"size", "previous_size", "base_size", "min_size", "max_size"})
# Which of the operands must be bounded for the result to be, where it is not all of them.
_ENOUGH: dict[tuple[str, Side], Callable[[Iterable[object]], bool]] = {
    ("minimum", "upper"): any,
    ("maximum", "lower"): any,
}
_KEEPING = frozenset({"minimum", "maximum", "round", "floor", "ceil", "add", "to_float32", "to_int64"})


def check_bounded(target: Signal, *, use: str) -> None:
    """Raises `PolicyError` where a size could become any number: one bad measurement would start peers without end."""
    sides: tuple[Side, Side] = ("lower", "upper")
    for side in sides:
        if not _bounded(target, side=side):
            raise PolicyError(
                f"{use}{name_clause(target)} has no {side} bound: a measurement that is off could ask for any number "
                "of peers; write kf.ops.clip(peers, training.min_size, training.max_size), or use .rescale(peers), "
                "which does"
            )


def _bounded(target: Signal, *, side: Side) -> bool:
    found: dict[Signal, bool] = {}
    for node in topological((target,)):
        found[node] = _is_bounded(node, found, side=side)
    return found[target]


def _is_bounded(node: Signal, found: dict[Signal, bool], *, side: Side) -> bool:
    """Whether a node is bounded on a side, given which of its operands are."""
    if isinstance(node, Constant):
        return node.value > -math.inf if side == "lower" else node.value < math.inf  # neither holds for NaN
    if isinstance(node, Source):
        return node.source in _SIZES
    if not isinstance(node, Map):
        return False  # a fold or a message may give any number
    name = node.operation.name
    # Either branch may be taken; the condition has no say in the value.
    if name == "where":
        return all(found[one] for one in node.operands[1:])
    return name in _KEEPING and _ENOUGH.get((name, side), all)(found[one] for one in node.operands)
