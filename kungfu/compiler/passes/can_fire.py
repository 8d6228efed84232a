"""Can fire: refuses a rule with a condition that can never hold, a mistake that would otherwise go unnoticed.

The pass is an abstract interpretation of the condition, in two parts. First, intervals are propagated through the
arithmetic, node by node, in topological order; these intervals also show whether a number has bounds. Then the
conjunction is split: comparisons of a source with constants restrict it to an interval, and conditions on its
remainders select numbers in that interval. Both parts over-approximate: a fold, a message or a measurement may have any
value. So a refused rule could never fire, and an accepted rule may still never fire.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kungfu.compiler.passes.remainders import can_meet
from kungfu.control import Rule
from kungfu.control.action import mask_of, numbers_of
from kungfu.errors import PolicyError
from kungfu.signal import SOURCES, Constant, Map, Signal, Source, topological
from kungfu.signal.operation import SignalType


@dataclass(frozen=True)
class _Range:
    """The interval of the values, other than NaN, that a number can have; if low > high, the number is always NaN."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def is_empty(self) -> bool:
        return self.low > self.high


_ANY, _NOTHING = _Range(), _Range(math.inf, -math.inf)
_ROUNDING = 1e-6  # some ulps of a float32
_SIZES = frozenset({"size", "min_size", "max_size", "previous_size", "base_size"})
_FROM_1 = frozenset({"step", "global_batch_size"})
_FROM_0 = frozenset({"rank", "view"} | {name for name, one in SOURCES.items() if one.unit})
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


def check_can_fire(rule: Rule, *, policy: str) -> None:
    """Raises `PolicyError` for a rule whose trigger holds in no step, or whose request can never be valid and new."""
    if not _can_hold(rule.gate & rule.when):
        raise PolicyError(
            f"policy {policy!r} has a rule that can never fire: its trigger holds in no step, whatever the run is like "
            "(steps and sizes count from 1); look at its .when(...), .after(...) and numbers"
        )
    mask = mask_of(rule.action)
    if mask is not None and len(marks := _truths(mask)) == 1:
        marked = "every peer, and peers go only where others stay" if True in marks else "no peer"
        raise PolicyError(
            f"policy {policy!r} has a rule that can never fire: its choice of peers marks {marked}, whatever the run "
            "is like (ranks count from 0); compare with what differs between peers"
        )
    if not _can_hold(rule.fires):
        what = " and ".join(numbers_of(rule.action)) or "action"
        settings = {"global batch size", "learning rate", "learning rate factor", "averaging interval"}
        above_0 = settings & {*numbers_of(rule.action)}
        bounds = " above 0" if above_0 else ""
        raise PolicyError(
            f"policy {policy!r} has a rule that can never fire: the {what} that it asks for never is a finite number"
            f"{bounds} other than what is; give one that can come about"
        )


def _can_hold(condition: Signal) -> bool:
    if True not in _truths(condition):
        return False
    parts = tuple(_conjuncts(condition))
    between = _constraints(parts)
    # Comparisons with constants restrict each source to an interval, and conditions on remainders restrict it further.
    return not any(one.is_empty for one in between.values()) and all(
        can_meet(parts, source=source, low=one.low, high=one.high) for source, one in between.items()
    )


def _truths(condition: Signal) -> frozenset[bool]:
    """The set of possible truth values of a node."""
    ranges: dict[Signal, _Range] = {}
    truths: dict[Signal, frozenset[bool]] = {}
    for node in topological((condition,)):
        if node.type.dtype == "bool":
            truths[node] = _truth(node, truths, ranges)
        else:
            ranges[node] = _range(node, ranges)
    return truths[condition]


def _truth(node: Signal, truths: Mapping[Signal, frozenset[bool]], ranges: Mapping[Signal, _Range]) -> frozenset[bool]:
    """The truth values that a node can have, from the possible truth values and intervals of its operands."""
    both = frozenset({True, False})
    if isinstance(node, Constant):
        return frozenset({bool(node.value)})
    # A fold, a message or a bool source may have any value.
    if not isinstance(node, Map):
        return both
    name = node.operation.name
    if name == "not":
        return frozenset(not one for one in truths[node.operands[0]])
    # Treating operands as independent over-approximates; `_constraints` handles sources that they share.
    if name in ("and", "or"):
        one, other = (truths[operand] for operand in node.operands)
        return frozenset((a and b) if name == "and" else (a or b) for a in one for b in other)
    if name == "is_finite":
        given = ranges[node.operands[0]]
        return both if not given.is_empty and given.low < math.inf and given.high > -math.inf else frozenset({False})
    if name in _COMPARED and all(operand in ranges for operand in node.operands):
        return _compared(name, *(ranges[one] for one in node.operands), whole=node.operands[0].type.dtype == "int64")
    return both


def _compared(name: str, one: _Range, other: _Range, *, whole: bool) -> frozenset[bool]:
    """The truth values that a comparison can have; False is always one of them if a number may be NaN."""
    always = whole and not _COMPARED[_OPPOSITE[name]](one, other)
    return frozenset({True}) if always else frozenset({True, False} if _COMPARED[name](one, other) else {False})


_COMPARED: Mapping[str, Callable[[_Range, _Range], bool]] = {
    "less": lambda a, b: a.low < b.high,
    "less_equal": lambda a, b: a.low <= b.high,
    "greater": lambda a, b: a.high > b.low,
    "greater_equal": lambda a, b: a.high >= b.low,
    "equal": lambda a, b: max(a.low, b.low) <= min(a.high, b.high),
    "not_equal": lambda a, b: not (a.low == a.high == b.low == b.high),
}


_OPPOSITE = {"less": "greater_equal", "greater": "less_equal", "equal": "not_equal"}
_OPPOSITE |= {opposite: name for name, opposite in _OPPOSITE.items()}


def unbounded_side(number: Signal) -> str:
    """The first side, "lower" or "upper", on which a number is unbounded; empty if it has both bounds."""
    ranges: dict[Signal, _Range] = {}
    for node in topological((number,)):
        if node.type.dtype != "bool":
            ranges[node] = _range(node, ranges, sizes=_Range(1, 2.0**53))
    found = ranges[number]
    return "lower" if found.low == -math.inf else "upper" if found.high == math.inf else ""


def _range(node: Signal, known: Mapping[Signal, _Range], *, sizes: _Range = _Range(1)) -> _Range:
    """The interval of a number, given its operands' intervals; `sizes` is the interval of every number of peers."""
    if isinstance(node, Constant):
        return _NOTHING if math.isnan(node.value) else _Range(node.value, node.value)
    if isinstance(node, Source):
        if node.source in _SIZES:
            return sizes
        return _Range(1) if node.source in _FROM_1 else _Range(0) if node.source in _FROM_0 else _ANY
    if not isinstance(node, Map):
        return _ANY
    operands = [known.get(one, _Range(0, 1)) for one in node.operands]  # a truth value counts as 0 or 1
    # Either branch may be chosen: the join of their intervals.
    if node.operation.name == "where":
        operands = operands[1:]
        return _Range(min(one.low for one in operands), max(one.high for one in operands))
    made = _RANGES.get(f"{node.operation.name}.{node.type.dtype}", _RANGES.get(node.operation.name))
    # Arithmetic in float32 propagates NaN; an unknown operation may return anything.
    if any(one.is_empty for one in operands):
        return _ANY if made is None or node.type.dtype == "int64" else _NOTHING
    found = _ANY if made is None else made(*operands)
    if math.isnan(found.low) or math.isnan(found.high):  # infinity minus infinity
        return _ANY
    return _rounded(found) if node.type.dtype == "float32" else found


def _rounded(exact: _Range) -> _Range:
    """Widens an interval for float32 rounding: in float32 0.1 + 0.2 equals 0.3; in Python the sum is larger."""
    return _Range(exact.low - abs(exact.low) * _ROUNDING, exact.high + abs(exact.high) * _ROUNDING)


_RANGES: Mapping[str, Callable[..., _Range]] = {
    "add": lambda a, b: _Range(a.low + b.low, a.high + b.high),
    "subtract": lambda a, b: _Range(a.low - b.high, a.high - b.low),
    "negative": lambda a: _Range(-a.high, -a.low),
    "abs": lambda a: _Range(0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high)), max(abs(a.low), abs(a.high))),
    "minimum": lambda a, b: _Range(min(a.low, b.low), min(a.high, b.high)),
    "maximum": lambda a, b: _Range(max(a.low, b.low), max(a.high, b.high)),
    "multiply": lambda a, b: _product(a, b),
    "divide": lambda a, b: _ANY,
    "modulo.int64": lambda a, b: _Range(0, b.high - 1) if b.low > 0 else _ANY,
    "modulo.float32": lambda a, b: _Range(0, b.high) if b.low > 0 else _ANY,
    "round": lambda a: _Range(a.low - 0.5, a.high + 0.5),
    "floor": lambda a: _Range(a.low - 1, a.high),
    "ceil": lambda a: _Range(a.low, a.high + 1),
    "to_float32": lambda a: a,
    "to_int64": lambda a: _Range(min(a.low, 0), max(a.high, 0)),  # towards 0, and 0 where it is not finite
    "sqrt": lambda a: _Range(0),
    "exp": lambda a: _Range(0),
    "log": lambda a: _ANY,
    "ranks": lambda size: _Range(0),
    "places": lambda vector: _Range(0),
}


def _product(one: _Range, other: _Range) -> _Range:
    corners = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
    return _ANY if any(math.isnan(corner) for corner in corners) else _Range(min(corners), max(corners))


# ---- the values of a source that several conditions allow ----------------------------------------------------------


def _constraints(parts: Sequence[Signal]) -> dict[str, _Range]:
    """For each int64 source, the interval in which all of `parts` that compare the source with a constant hold."""
    leaves = (node for node in topological(parts) if isinstance(node, Source) and node.type == SignalType("int64"))
    found = {node.source: _range(node, {}) for node in leaves}
    for part in parts:
        if (bound := _bound(part)) is not None:
            source, between = bound
            before = found[source]
            found[source] = _Range(max(before.low, between.low), min(before.high, between.high))
    return found


def _conjuncts(condition: Signal) -> Iterator[Signal]:
    stack = [condition]
    while stack:
        node = stack.pop()
        if isinstance(node, Map) and node.operation.name == "and":
            stack.extend(node.operands)
        else:
            yield node


def _bound(part: Signal) -> tuple[str, _Range] | None:
    """The source that a condition compares with a constant, and the interval left to the source; else ``None``."""
    if not isinstance(part, Map) or len(part.operands) != 2:
        return None
    name, (one, other) = part.operation.name, part.operands
    # ``3 < step`` is ``step > 3``.
    if isinstance(one, Constant):
        name, one, other = _MIRRORED.get(name, name), other, one
    if not isinstance(one, Source) or one.type.dtype != "int64" or not isinstance(other, Constant):
        return None
    value = other.value
    # A strict comparison of whole numbers excludes the next whole number.
    between = {
        "less": _Range(high=math.ceil(value) - 1 if math.isfinite(value) else value),
        "less_equal": _Range(high=value),
        "greater": _Range(low=math.floor(value) + 1 if math.isfinite(value) else value),
        "greater_equal": _Range(low=value),
        "equal": _Range(value, value),
    }.get(name)
    return None if between is None or math.isnan(value) else (one.source, between)
