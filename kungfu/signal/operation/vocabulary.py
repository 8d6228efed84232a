"""The vocabulary: one row for each operation.

A row has the name, the type rule, the NumPy kernel, the name of the TensorFlow kernel, and Python's symbol where it has
one. The second place of an operation is its row of C++ in ``kungfu/native/policy/operation.cc``, but for reductions of
the gradients, which are computed outside of the bytecode.
"""

from __future__ import annotations

import numpy as np

from kungfu.signal.operation import numpy_kernels as kernels
from kungfu.signal.operation import rules
from kungfu.signal.operation.operation import Operation

_ROWS = (
    # entry by entry
    Operation("add", rules.arithmetic, np.add, "tf.math.add", "+"),
    Operation("subtract", rules.arithmetic, np.subtract, "tf.math.subtract", "-"),
    Operation("multiply", rules.arithmetic, np.multiply, "tf.math.multiply", "*"),
    Operation("divide", rules.fractional, np.divide, "tf.math.divide", "/"),
    Operation(
        "floor_divide", rules.integral("kf.ops.floor(a / b)"), kernels.floor_divide, "kernels.floor_divide", "//"
    ),
    Operation("modulo", rules.integral("a - b * kf.ops.floor(a / b)"), kernels.modulo, "kernels.modulo", "%"),
    Operation("negative", rules.arithmetic, np.negative, "tf.math.negative", "-"),
    Operation("abs", rules.arithmetic, np.abs, "tf.math.abs"),
    Operation("minimum", rules.arithmetic, np.minimum, "kernels.minimum"),
    Operation("maximum", rules.arithmetic, np.maximum, "kernels.maximum"),
    Operation("sqrt", rules.fractional, np.sqrt, "tf.math.sqrt"),
    Operation("exp", rules.fractional, np.exp, "tf.math.exp"),
    Operation("log", rules.fractional, np.log, "tf.math.log"),
    Operation("round", rules.fractional, np.rint, "tf.math.round"),
    Operation("floor", rules.fractional, np.floor, "tf.math.floor"),
    Operation("ceil", rules.fractional, np.ceil, "tf.math.ceil"),
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
    Operation("where", rules.choice, np.where, "tf.where"),
    Operation("to_bool", rules.cast_to("bool"), np.bool_, "kernels.to_bool"),
    Operation("to_int64", rules.cast_to("int64"), kernels.whole, "kernels.whole"),
    Operation("to_float32", rules.cast_to("float32"), np.float32, "kernels.to_float32"),
    # vectors
    Operation("take", rules.entry, kernels.take, "kernels.take"),
    Operation("push", rules.shifted, kernels.push, "kernels.push"),
    Operation("scatter", rules.scattered, kernels.scatter, "kernels.scatter"),
    Operation("fill", rules.filled, kernels.fill, "kernels.fill"),
    Operation("ranks", rules.peers, kernels.ranks, "tf.range"),
    Operation("places", rules.place_numbers, kernels.places, "kernels.places"),
    Operation("any", rules.vector_logic, np.any, "tf.reduce_any"),
    Operation("all", rules.vector_logic, np.all, "tf.reduce_all"),
    Operation("count", rules.numbering, kernels.count, "tf.math.count_nonzero"),
    Operation("argmin", rules.entry_index, kernels.argmin, "kernels.argmin"),
    Operation("argmax", rules.entry_index, kernels.argmax, "kernels.argmax"),
    Operation("sum", rules.vector_reduction, np.sum, "tf.reduce_sum"),
    Operation("mean", rules.vector_reduction, np.mean, "tf.reduce_mean"),
    Operation("min", rules.vector_reduction, np.min, "kernels.smallest"),
    Operation("max", rules.vector_reduction, np.max, "kernels.largest"),
    Operation("median", rules.vector_reduction, np.median, "kernels.median"),
    Operation("mean_present", rules.vector_reduction, kernels.of_present(np.mean), "kernels.mean_present"),
    Operation("min_present", rules.vector_reduction, kernels.of_present(np.min), "kernels.min_present"),
    Operation("max_present", rules.vector_reduction, kernels.of_present(np.max), "kernels.max_present"),
    Operation("median_present", rules.vector_reduction, kernels.of_present(np.median), "kernels.median_present"),
    # the gradients
    Operation("norm_squared", rules.nest_reduction, kernels.norm_squared, "kernels.norm_squared"),
    Operation("dot", rules.nest_reduction, kernels.dot, "kernels.dot"),
    Operation("max_abs", rules.nest_reduction, kernels.largest_magnitude, "kernels.largest_magnitude"),
    Operation("all_finite", rules.nest_predicate, kernels.all_finite, "kernels.all_finite"),
)
VOCABULARY = {row.name: row for row in _ROWS}
