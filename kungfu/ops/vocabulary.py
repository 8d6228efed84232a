"""The vocabulary: every operation by its name, one line an entry; see `kungfu.signal.operation`."""

from __future__ import annotations

import numpy as np

from kungfu.signal import OPERATORS, Map, Operation, apply
from kungfu.signal.operation import numpy_kernels as kernels
from kungfu.signal.operation.rules import (
    arithmetic,
    cast_to,
    entry_index,
    filled,
    fractional,
    nest_predicate,
    nest_reduction,
    numbering,
    peers,
    vector_logic,
    vector_reduction,
)

_ENTRIES = (
    # entry by entry
    Operation("exp", fractional, np.exp, "tf.math.exp"),
    Operation("log", fractional, np.log, "tf.math.log"),
    Operation("round", fractional, np.rint, "tf.math.round"),
    Operation("floor", fractional, np.floor, "tf.math.floor"),
    Operation("ceil", fractional, np.ceil, "tf.math.ceil"),
    Operation("minimum", arithmetic, np.minimum, "kernels.minimum"),
    Operation("maximum", arithmetic, np.maximum, "kernels.maximum"),
    Operation("to_bool", cast_to("bool"), np.bool_, "kernels.to_bool"),
    Operation("to_int64", cast_to("int64"), kernels.whole, "kernels.whole"),
    Operation("to_float32", cast_to("float32"), np.float32, "kernels.to_float32"),
    # vectors
    Operation("sum", vector_reduction, np.sum, "tf.reduce_sum"),
    Operation("mean", vector_reduction, np.mean, "tf.reduce_mean"),
    Operation("min", vector_reduction, np.min, "kernels.smallest"),
    Operation("max", vector_reduction, np.max, "kernels.largest"),
    Operation("median", vector_reduction, np.median, "kernels.median"),
    Operation("any", vector_logic, np.any, "tf.reduce_any"),
    Operation("all", vector_logic, np.all, "tf.reduce_all"),
    Operation("count", numbering, kernels.count, "kernels.count"),
    Operation("argmin", entry_index, kernels.argmin, "kernels.argmin"),
    Operation("argmax", entry_index, kernels.argmax, "kernels.argmax"),
    Operation("fill", filled, kernels.fill, "kernels.fill"),
    Operation("ranks", peers, kernels.ranks, "kernels.ranks"),
    # the gradients
    Operation("norm_squared", nest_reduction, kernels.norm_squared, "kernels.norm_squared"),
    Operation("dot", nest_reduction, kernels.dot, "kernels.dot"),
    Operation("max_abs", nest_reduction, kernels.largest_magnitude, "kernels.largest_magnitude"),
    Operation("all_finite", nest_predicate, kernels.all_finite, "kernels.all_finite"),
)
VOCABULARY = {**OPERATORS, **{entry.name: entry for entry in _ENTRIES}}


def operate(name: str, *operands: object) -> Map:
    """The node of the operation by this name on these signals or numbers."""
    return apply(VOCABULARY[name], *operands)
