"""Bytecode: what one side of a step computes, one instruction a line, for the native op `KungfuEvaluate`.

``kungfu/native/policy/bytecode.h`` says what the lines mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kungfu.signal.operation import DType, SignalType

__all__ = ["Bytecode", "Register", "assembled", "literal"]


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


def assembled(
    code: Iterable[str],
    *,
    states: Mapping[int, Register],
    inputs: Mapping[str, Register],
    constants: Mapping[tuple[DType, str], Register],
    results: Sequence[Register],
    kept: Sequence[Register] = (),
) -> Bytecode:
    """The bytecode of this code; ``kept`` is what all states become, none where they stay."""
    head = [
        _numbered("states", states.values()),
        _numbered("inputs", inputs.values()),
        *(f"constant {dtype} {register.number} {text}" for (dtype, text), register in constants.items()),
        _numbered("results", results),
        _numbered("kept", kept),
    ]
    given = {name: register.type.dtype for name, register in inputs.items()}
    return Bytecode("\n".join([*head, *code]), tuple(states), given, tuple(one.type.dtype for one in results))


def _numbered(word: str, registers: Iterable[Register]) -> str:
    return " ".join([word, *(str(one.number) for one in registers)])


def literal(value: bool | int | float, *, dtype: DType) -> str:
    """A constant in bytecode's words: a float to its last bit."""
    return float(value).hex() if dtype == "float32" else str(int(value))
