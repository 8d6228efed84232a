"""Bytecode: what one side of a step computes, one instruction a line, for the native op `KungfuEvaluate`.

``kungfu/native/policy/bytecode.h`` says what the lines mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kungfu.signal.operation import DType, SignalType

__all__ = ["Bytecode", "Register", "literal"]


@dataclass(frozen=True, eq=False)
class Register:
    """Where a value stands while bytecode runs."""

    number: int
    type: SignalType


@dataclass(frozen=True)
class Bytecode:
    """The text, and what the op is given beside it: states by their place among the fields of all folds, inputs by
    name; and the dtypes of the vectors that it gives."""

    text: str
    states: tuple[int, ...]
    inputs: Mapping[str, DType]
    results: tuple[DType, ...]


def literal(value: bool | int | float, *, dtype: DType) -> str:
    """A constant in bytecode's words: a float to its last bit."""
    return float(value).hex() if dtype == "float32" else str(int(value))
