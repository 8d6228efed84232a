"""Units: dimensional analysis of a plan from the units of the sources.

A dimension is a product of powers of base units. A constant fits any dimension. The sum of a number without a dimension
and a signal has the signal's dimension. If signals of two dimensions are added, or a function preserves no dimension,
the dimension of the result is unknown, and no unit is shown. The entries of a vector may have different dimensions, if
they were written at constant indices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kungfu.signal import Collective, Constant, Fold, Map, Placeholder, Signal, Source, topological

Dimension = Mapping[str, int]
_ANY: Dimension = {"any": 0}  # of a constant, which fits any dimension
_NONE: Dimension = {"unknown": 0}


@dataclass(frozen=True)
class _Entries:
    """The dimensions of a vector whose entries differ: those of the entries at some indices, and of all others."""

    at: Mapping[int, Dimension]
    others: Dimension


_Found = Dimension | _Entries


def units_of(nodes: Iterable[Signal]) -> dict[Signal, str]:
    """The unit of each of `nodes`, in which inputs precede the nodes that use them; "" for no unit, or an unknown one.

    >>> from kungfu.signal import TrainingSignals, topological
    >>> training = TrainingSignals()
    >>> speed = training.samples / training.step_seconds
    >>> units_of(topological((speed.ema(0.1),)))[speed]
    'samples/s'
    """
    found: dict[Signal, _Found] = {}
    for node in nodes:
        found[node] = _unit(node, found)
    return {node: _written(_whole(unit)) for node, unit in found.items()}


def _unit(node: Signal, found: Mapping[Signal, _Found]) -> _Found:
    if isinstance(node, Source):
        unit = node.kind.unit
        return {unit: 1} if unit else {}
    if isinstance(node, Constant):
        return _ANY
    if isinstance(node, Collective):
        return found[node.operand]
    if isinstance(node, Map):
        operands = [found[one] for one in node.operands]
        index = node.operands[1] if node.operation.unit in ("entry", "scattered") else None
        if isinstance(index, Constant) and index.value >= 0:
            return _of_entry(int(index.value), operands[0], operands[2:])
        return _of_map(node, [_whole(one) for one in operands])
    return _of_fold(node, found) if isinstance(node, Fold) else _NONE


def _of_map(node: Map, operands: list[Dimension]) -> Dimension:
    if node.type.dtype == "bool":  # a truth value has no unit
        return {}
    match node.operation.unit:
        case "none":
            return {}
        case "same" | "entry":
            return operands[0]
        case "common":
            return _common(operands)
        case "chosen":  # the first operand is the condition
            return _common(operands[1:])
        case "scattered":  # the second operand is an index
            return _common([operands[0], operands[2]])
        case "product":
            return _product(*operands, sign=1)
        case "quotient":
            return _product(*operands, sign=-1)
        case "root":
            return _root(operands[0])
    return _NONE


def _of_entry(index: int, vector: _Found, written: Sequence[_Found]) -> _Found:
    """The dimension of the entry of a vector at a constant index, or those of the vector with a value written there."""
    entries = vector if isinstance(vector, _Entries) else _Entries({}, vector)
    if not written:
        return entries.at.get(index, entries.others)
    return _Entries({**entries.at, index: _whole(written[0])}, entries.others)


def _whole(of: _Found) -> Dimension:
    """The dimension shared by all entries of a vector, or unknown."""
    return _common((of.others, *of.at.values())) if isinstance(of, _Entries) else of


def _common(units: Iterable[Dimension]) -> Dimension:
    """The dimension shared by several numbers, or unknown; constants and numbers without a unit fit any dimension."""
    given = [one for one in units if one is not _ANY]
    distinct = [one for one in given if one]
    if not distinct:
        return given[0] if given else _ANY
    return distinct[0] if all(one == distinct[0] for one in distinct) else _NONE


def _product(one: Dimension, other: Dimension, *, sign: int) -> Dimension:
    if one is _ANY and other is _ANY:
        return _ANY
    if one is _NONE or other is _NONE:
        return _NONE
    powers = Counter({} if one is _ANY else one)
    for unit, power in ({} if other is _ANY else other).items():
        powers[unit] += sign * power
    return {unit: power for unit, power in powers.items() if power}


def _root(of: Dimension) -> Dimension:
    """The dimension of the square root of a number; unknown if a unit of the number has an odd power."""
    if of is _ANY or of is _NONE:
        return of
    return _NONE if any(power % 2 for power in of.values()) else {name: power // 2 for name, power in of.items()}


def _of_fold(fold: Fold, found: Mapping[Signal, _Found]) -> _Found:
    """The dimension of a fold's output, from a fixed point over its state.

    The dimension of a field or an entry is undetermined at first, and then is the dimension of its update. An update
    may hold the previous value of another field, so the fixed point is reached at the latest after one round per node
    of the updates, and one more round shows it. A product over the steps has no fixed point: its dimension is unknown.
    """
    inside = fold.recurrence
    inputs: list[_Found] = [found[one] for one in fold.observed]
    state: list[_Found] = [_ANY for _ in inside.init]
    for _ in range(len(topological(inside.updates)) + 1):
        made = _inside(inside.updates, state=state, inputs=inputs)
        before, state = state, [made[one] for one in inside.updates]
        if state == before:
            return _inside((inside.output,), state=state, inputs=inputs)[inside.output]
    return _NONE


def _inside(results: tuple[Signal, ...], *, state: Sequence[_Found], inputs: Sequence[_Found]) -> dict[Signal, _Found]:
    found: dict[Signal, _Found] = {}
    for node in topological(results):
        if isinstance(node, Placeholder):
            found[node] = (state if node.kind == "state" else inputs)[node.index]
        else:
            found[node] = _unit(node, found)
    return found


def _written(unit: Dimension) -> str:
    above = [_power(name, power) for name, power in sorted(unit.items()) if power > 0]
    below = [_power(name, -power) for name, power in sorted(unit.items()) if power < 0]
    if not below:
        return " ".join(above)
    return (" ".join(above) or "1") + "/" + ("/".join(below))


def _power(name: str, power: int) -> str:
    return name if power == 1 else f"{name}^{power}"
