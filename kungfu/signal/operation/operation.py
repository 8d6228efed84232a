"""An operation as a value, and those of Python itself: operators, choice, index; and what memory is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kungfu.errors import PolicyError
from kungfu.signal.operation import numpy_kernels as kernels
from kungfu.signal.operation.rules import (
    TypeRule,
    Typing,
    arithmetic,
    choice,
    comparison,
    entry,
    fractional,
    integral,
    logic,
    order,
    place_numbers,
    predicate,
    scattered,
    shifted,
    vector_reduction,
)
from kungfu.signal.operation.type import SignalType


@dataclass(frozen=True)
class Operation:
    """One entry of the vocabulary; `symbol` is how Python writes it, where it is an operator."""

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
        """What the graph would compute from values of these types, by the NumPy kernel: a scalar or an array."""
        typing = self.typing(types)
        with np.errstate(all="ignore"):
            operands = [np.asarray(value, dtype) for value, dtype in zip(values, typing.operands, strict=True)]
            return np.asarray(self.numpy(*operands), typing.result.dtype)


_ENTRIES = (
    Operation("add", arithmetic, np.add, "tf.math.add", "+"),
    Operation("subtract", arithmetic, np.subtract, "tf.math.subtract", "-"),
    Operation("multiply", arithmetic, np.multiply, "tf.math.multiply", "*"),
    Operation("divide", fractional, np.divide, "tf.math.divide", "/"),
    Operation("floor_divide", integral("kf.ops.floor(a / b)"), kernels.floor_divide, "kernels.floor_divide", "//"),
    Operation("modulo", integral("a - b * kf.ops.floor(a / b)"), kernels.modulo, "kernels.modulo", "%"),
    Operation("negative", arithmetic, np.negative, "tf.math.negative", "-"),
    Operation("abs", arithmetic, np.abs, "tf.math.abs"),
    Operation("sqrt", fractional, np.sqrt, "tf.math.sqrt"),
    Operation("is_finite", predicate, np.isfinite, "tf.math.is_finite"),
    Operation("less", order, np.less, "tf.math.less", "<"),
    Operation("less_equal", order, np.less_equal, "tf.math.less_equal", "<="),
    Operation("greater", order, np.greater, "tf.math.greater", ">"),
    Operation("greater_equal", order, np.greater_equal, "tf.math.greater_equal", ">="),
    Operation("equal", comparison, np.equal, "tf.math.equal", "=="),
    Operation("not_equal", comparison, np.not_equal, "tf.math.not_equal", "!="),
    Operation("and", logic, np.logical_and, "tf.math.logical_and", "&"),
    Operation("or", logic, np.logical_or, "tf.math.logical_or", "|"),
    Operation("not", logic, np.logical_not, "tf.math.logical_not", "~"),
    Operation("where", choice, np.where, "tf.where"),
    Operation("take", entry, kernels.take, "kernels.take"),
    # What the memory of a signal is made of.
    Operation("push", shifted, kernels.push, "kernels.push"),
    Operation("places", place_numbers, kernels.places, "kernels.places"),
    Operation("scatter", scattered, kernels.scatter, "kernels.scatter"),
    Operation("mean_present", vector_reduction, kernels.of_present(np.mean), "kernels.mean_present"),
    Operation("min_present", vector_reduction, kernels.of_present(np.min), "kernels.min_present"),
    Operation("max_present", vector_reduction, kernels.of_present(np.max), "kernels.max_present"),
    Operation("median_present", vector_reduction, kernels.of_present(np.median), "kernels.median_present"),
)
OPERATORS = {entry.name: entry for entry in _ENTRIES}
