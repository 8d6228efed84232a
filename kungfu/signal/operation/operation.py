"""An operation as a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kungfu.errors import PolicyError
from kungfu.signal.operation.rules import TypeRule, Typing
from kungfu.signal.operation.type import SignalType


@dataclass(frozen=True)
class Operation:
    """One row of the vocabulary; `symbol` is how Python writes it, where it is an operator."""

    name: str
    rule: TypeRule
    numpy: Callable[..., Any]
    tensorflow: str
    symbol: str = ""

    def typing(self, types: tuple[SignalType, ...]) -> Typing:
        """The operand and result types for inputs of these types; raises `PolicyError` that names the operation."""
        try:
            return self.rule(types)
        except PolicyError as error:
            given = ", ".join(str(one) for one in types)
            raise PolicyError(f"{self.name}({given}): {error}") from None

    def evaluate(self, values: Sequence[Any], types: tuple[SignalType, ...]) -> Any:
        """The value that the graph would compute from these, by the NumPy kernel: a scalar or an array."""
        typing = self.typing(types)
        with np.errstate(all="ignore"):
            operands = [np.asarray(value, dtype) for value, dtype in zip(values, typing.operands, strict=True)]
            return np.asarray(self.numpy(*operands), typing.result.dtype)
