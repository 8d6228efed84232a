"""The vocabulary: the operations with which a policy computes signals, one row for each operation.

Each operation also has a row in C++, in ``kungfu/native/policy/operation.cc``, except for reductions of the gradients,
which are computed outside the bytecode. If NumPy or TensorFlow has no function for an operation, the row names a
function of ``numpy_kernels`` or ``tensorflow_kernels``. The compiler's passes assume nothing about operations that they
do not name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kungfu.errors import PolicyError
from kungfu.signal.operation import numpy_kernels as kernels
from kungfu.signal.operation import rules
from kungfu.signal.operation.rules import SignalType, TypeRule, Typing

UnitRule = Literal["", "none", "same", "common", "chosen", "entry", "scattered", "product", "quotient", "root"]


@dataclass(frozen=True)
class Operation:
    """One row of the vocabulary: an operation that computes a signal from other signals.

    The result of an operation is local if an operand is local, else agreed.

    Attributes:
        name: The name of the operation, also used in records and in the C++ table.
        rule: The type rule.
        numpy: The NumPy kernel.
        tensorflow: The name of the TensorFlow kernel, as in ``tf.math.add`` or ``kernels.push``.
        symbol: The Python operator, if there is one.
        unit: The rule that makes the result's unit from the operands' units, as a word; empty if there is none.
    """

    name: str
    rule: TypeRule
    numpy: Callable[..., Any]
    tensorflow: str
    symbol: str = ""
    unit: UnitRule = ""

    def typing(self, types: tuple[SignalType, ...]) -> Typing:
        """The operand and result types for inputs of these types; raises a `PolicyError` that names the operation."""
        try:
            return self.rule(types)
        except PolicyError as error:
            given = ", ".join(str(one) for one in types)
            raise PolicyError(f"{self.name}({given}): {error}") from None

    def evaluate(self, values: Sequence[Any], types: tuple[SignalType, ...]) -> Any:
        """Applies the operation to these values by its NumPy kernel; returns a scalar or an array."""
        typing = self.typing(types)
        with np.errstate(all="ignore"):
            operands = [np.asarray(value, dtype) for value, dtype in zip(values, typing.operands, strict=True)]
            return np.asarray(self.numpy(*operands), typing.result.dtype)


_ROWS = (
    # entry by entry
    Operation("add", rules.arithmetic, np.add, "tf.math.add", "+", unit="common"),
    Operation("subtract", rules.arithmetic, np.subtract, "tf.math.subtract", "-", unit="common"),
    Operation("multiply", rules.arithmetic, np.multiply, "tf.math.multiply", "*", unit="product"),
    Operation("divide", rules.fractional, np.divide, "tf.math.divide", "/", unit="quotient"),
    Operation("floor_divide", rules.arithmetic, kernels.floor_divide, "kernels.floor_divide", "//", unit="quotient"),
    Operation("modulo", rules.arithmetic, kernels.modulo, "kernels.modulo", "%", unit="same"),
    Operation("power", rules.fractional, np.power, "tf.math.pow", "**"),
    Operation("negative", rules.arithmetic, np.negative, "tf.math.negative", "-", unit="same"),
    Operation("abs", rules.arithmetic, np.abs, "tf.math.abs", unit="same"),
    Operation("minimum", rules.arithmetic, np.minimum, "kernels.minimum", unit="common"),
    Operation("maximum", rules.arithmetic, np.maximum, "kernels.maximum", unit="common"),
    Operation("sqrt", rules.fractional, np.sqrt, "tf.math.sqrt", unit="root"),
    Operation("exp", rules.fractional, np.exp, "tf.math.exp"),
    Operation("log", rules.fractional, np.log, "tf.math.log"),
    Operation("round", rules.fractional, np.rint, "tf.math.round", unit="same"),
    Operation("floor", rules.fractional, np.floor, "tf.math.floor", unit="same"),
    Operation("ceil", rules.fractional, np.ceil, "tf.math.ceil", unit="same"),
    Operation("is_finite", rules.predicate, np.isfinite, "tf.math.is_finite"),
    Operation("less", rules.order, np.less, "tf.math.less", "<"),
    Operation("less_equal", rules.order, np.less_equal, "tf.math.less_equal", "<="),
    Operation("greater", rules.order, np.greater, "tf.math.greater", ">"),
    Operation("greater_equal", rules.order, np.greater_equal, "tf.math.greater_equal", ">="),
    Operation("equal", rules.comparison, np.equal, "tf.math.equal", "=="),
    Operation("not_equal", rules.comparison, np.not_equal, "tf.math.not_equal", "!="),
    Operation("and", rules.logic, np.logical_and, "tf.math.logical_and", "&"),
    Operation("or", rules.logic, np.logical_or, "tf.math.logical_or", "|"),
    Operation("not", rules.logic, np.logical_not, "tf.math.logical_not", "~"),
    Operation("where", rules.choice, np.where, "tf.where", unit="chosen"),
    Operation("to_bool", rules.cast_to("bool"), np.bool_, "kernels.to_bool"),
    Operation("to_int64", rules.cast_to("int64"), kernels.whole, "kernels.whole", unit="same"),
    Operation("to_float32", rules.cast_to("float32"), np.float32, "kernels.to_float32", unit="same"),
    # vectors
    Operation("take", rules.entry, kernels.take, "kernels.take", unit="entry"),
    Operation("push", rules.shifted, kernels.push, "kernels.push", unit="common"),
    Operation("scatter", rules.scattered, kernels.scatter, "kernels.scatter", unit="scattered"),
    Operation("fill", rules.filled, kernels.fill, "kernels.fill", unit="same"),
    Operation("ranks", rules.peers, kernels.ranks, "tf.range"),
    Operation("places", rules.place_numbers, kernels.places, "kernels.places", unit="none"),
    Operation("any", rules.vector_logic, np.any, "tf.reduce_any"),
    Operation("all", rules.vector_logic, np.all, "tf.reduce_all"),
    Operation("count", rules.numbering, kernels.count, "tf.math.count_nonzero"),
    Operation("argmin", rules.entry_index, kernels.argmin, "kernels.argmin"),
    Operation("argmax", rules.entry_index, kernels.argmax, "kernels.argmax"),
    Operation("sum", rules.vector_reduction, np.sum, "tf.reduce_sum", unit="same"),
    Operation("mean", rules.vector_reduction, np.mean, "tf.reduce_mean", unit="same"),
    Operation("min", rules.vector_reduction, np.min, "kernels.smallest", unit="same"),
    Operation("max", rules.vector_reduction, np.max, "kernels.largest", unit="same"),
    Operation("median", rules.vector_reduction, np.median, "kernels.median", unit="same"),
    Operation("sum_present", rules.vector_reduction, kernels.of_present(np.sum), "kernels.sum_present", unit="same"),
    Operation("mean_present", rules.vector_reduction, kernels.of_present(np.mean), "kernels.mean_present", unit="same"),
    Operation("std_present", rules.vector_reduction, kernels.of_present(np.std), "kernels.std_present", unit="same"),
    Operation("min_present", rules.vector_reduction, kernels.of_present(np.min), "kernels.min_present", unit="same"),
    Operation("max_present", rules.vector_reduction, kernels.of_present(np.max), "kernels.max_present", unit="same"),
    Operation(
        "median_present", rules.vector_reduction, kernels.of_present(np.median), "kernels.median_present", unit="same"
    ),
    # the gradients
    Operation("norm_squared", rules.nest_reduction, kernels.norm_squared, "kernels.norm_squared", unit="none"),
    Operation("dot", rules.nest_reduction, kernels.dot, "kernels.dot", unit="none"),
    Operation("max_abs", rules.nest_reduction, kernels.largest_magnitude, "kernels.largest_magnitude", unit="none"),
    Operation("all_finite", rules.nest_predicate, kernels.all_finite, "kernels.all_finite"),
)
VOCABULARY = {row.name: row for row in _ROWS}
