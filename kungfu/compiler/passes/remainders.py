"""Remainders: decides if any whole number meets every condition on the remainders of one source. ``step % 4 == 1`` and
``step % 2 == 0`` both hold in some steps, but never in the same step, and intervals do not show that. A condition in
which a source appears only under ``%`` is periodic, so the numbers that meet the condition form a set of residues
modulo the period. This set is found by evaluating the condition over one period. Two sets are intersected as in the
Chinese remainder theorem. The analysis is sound but incomplete: if a period or a set is too large to list, the
condition is assumed to be satisfiable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kungfu.signal import SCALAR, Constant, Map, Signal, Source, topological
from kungfu.signal.operation import SignalType

_WHOLE = SignalType("int64")
_POLYNOMIAL = frozenset({"add", "subtract", "multiply", "negative"})
# The maximum length of a list of residues; a longer list is not computed.
_MOST = 2**20
_LARGEST_MODULUS = 2**62


@dataclass(frozen=True)
class _Residues:
    """The whole numbers whose remainder on division by `modulus` is one of `remainders`."""

    modulus: int = 1
    remainders: Any = (0,)


@dataclass(frozen=True)
class _Period:
    """The period of a node's values (`repeats`), or else of its coefficients as a polynomial of the source."""

    length: int
    repeats: bool


def can_meet(parts: Iterable[Signal], *, source: str, low: float, high: float) -> bool:
    """True if some number may meet all conditions on the remainders of a source; a result of False is certain.

    Args:
        parts: The conditions of a conjunction; conditions that depend on more than the source are ignored.
        source: The name of an int64 source.
        low: The minimum value of the source.
        high: The maximum value of the source.
    """
    found = _Residues()
    for residues in sorted(_sets_of_residues(parts, source=source), key=lambda one: len(one.remainders)):
        found = _met(found, residues)
    if not len(found.remainders):
        return False
    if not math.isfinite(low):
        return True  # every residue has arbitrarily small members
    least = math.ceil(low)
    return any(least + (int(one) - least) % found.modulus <= high for one in found.remainders)


def _sets_of_residues(parts: Iterable[Signal], *, source: str) -> list[_Residues]:
    """The residues that meet each condition that is periodic in the source; other conditions are omitted."""
    found = []
    for part in parts:
        period = _period(part, source=source)
        if period is not None and period.repeats and period.length <= _MOST:
            holds = _evaluated(part, np.arange(period.length, dtype=np.int64))
            found.append(_Residues(period.length, np.flatnonzero(holds)))
    return found


def _met(some: _Residues, others: _Residues) -> _Residues:
    """The intersection of both sets; if its list of remainders would be too long, `some`, which contains it."""
    modulus = math.lcm(some.modulus, others.modulus)
    copies = modulus // some.modulus
    if modulus > _LARGEST_MODULUS or copies * len(some.remainders) > _MOST:
        return some
    allowed = np.zeros(others.modulus, bool)
    allowed[others.remainders] = True
    # Each residue of `some` corresponds to several residues of the common modulus; `others` allows some of these.
    starts = some.modulus * np.arange(copies, dtype=np.int64)
    candidates = (np.asarray(some.remainders, np.int64)[:, None] + starts).ravel()
    return _Residues(modulus, candidates[allowed[candidates % others.modulus]])


def _period(part: Signal, *, source: str) -> _Period | None:
    """The periodic dependence of a condition on the source; None if it depends on anything else, or is not periodic."""
    known: dict[Signal, _Period | None] = {}
    for node in topological((part,)):
        known[node] = _period_of_node(node, known, source=source)
    return known[part]


def _period_of_node(node: Signal, known: Mapping[Signal, _Period | None], *, source: str) -> _Period | None:
    if isinstance(node, Constant):
        return _Period(1, repeats=True)
    if isinstance(node, Source):
        return _Period(1, repeats=False) if node.source == source and node.type == _WHOLE else None
    if not isinstance(node, Map) or node.type.shape != SCALAR:
        return None  # a fold, a message or a vector may have any value
    below = [known[one] for one in node.operands]
    periods = [one for one in below if one is not None]
    if len(periods) < len(below):
        return None
    length = math.lcm(*(one.length for one in periods))
    # A function of periodic values is periodic.
    if all(one.repeats for one in periods):
        return _Period(length, repeats=True)
    # Sums and products with the source are polynomials of it.
    if node.operation.name in _POLYNOMIAL and node.type == _WHOLE:
        return _Period(length, repeats=False)
    # The remainder of a polynomial has the divisor as a period.
    divisor = node.operands[-1]
    if node.operation.name == "modulo" and isinstance(divisor, Constant) and node.type == _WHOLE and divisor.value:
        return _Period(math.lcm(length, int(divisor.value)), repeats=True)
    return None


def _evaluated(part: Signal, numbers: Any) -> Any:
    """The truth values of a condition, one for each of these numbers as the value of its source; computed by NumPy."""
    values: dict[Signal, Any] = {}
    for node in topological((part,)):
        if isinstance(node, Map):
            types = tuple(one.type for one in node.operands)
            values[node] = node.operation.evaluate([values[one] for one in node.operands], types)
        else:
            values[node] = np.asarray(node.value, node.type.dtype) if isinstance(node, Constant) else numbers
    return np.broadcast_to(values[part], numbers.shape)
