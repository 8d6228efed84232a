"""The vocabulary: every operation by its name, one line an entry; see `kungfu.signal.operation`."""

from __future__ import annotations

import numpy as np

from kungfu.signal import OPERATORS, Map, Operation, apply
from kungfu.signal.operation import numpy_twins as twins
from kungfu.signal.operation.rules import (
    arithmetic,
    cast_to,
    entry_index,
    fractional,
    nest_predicate,
    nest_reduction,
    numbering,
    peers,
    predicate,
    spread,
    vector_logic,
    vector_reduction,
)

__all__ = ["VOCABULARY", "operate"]

_ENTRIES = (
    # entry by entry
    Operation("sqrt", fractional, np.sqrt, "tf.math.sqrt"),
    Operation("exp", fractional, np.exp, "tf.math.exp"),
    Operation("log", fractional, np.log, "tf.math.log"),
    Operation("round", fractional, np.rint, "tf.math.round"),
    Operation("floor", fractional, np.floor, "tf.math.floor"),
    Operation("ceil", fractional, np.ceil, "tf.math.ceil"),
    Operation("minimum", arithmetic, np.minimum, "twins.minimum"),
    Operation("maximum", arithmetic, np.maximum, "twins.maximum"),
    Operation("is_finite", predicate, np.isfinite, "tf.math.is_finite"),
    Operation("to_bool", cast_to("bool"), np.bool_, "twins.to_bool"),
    Operation("to_int64", cast_to("int64"), twins.whole, "twins.whole"),
    Operation("to_float32", cast_to("float32"), np.float32, "twins.to_float32"),
    # vectors
    Operation("sum", vector_reduction, np.sum, "tf.reduce_sum"),
    Operation("mean", vector_reduction, np.mean, "tf.reduce_mean"),
    Operation("min", vector_reduction, np.min, "twins.smallest"),
    Operation("max", vector_reduction, np.max, "twins.largest"),
    Operation("median", vector_reduction, np.median, "twins.median"),
    Operation("any", vector_logic, np.any, "tf.reduce_any"),
    Operation("all", vector_logic, np.all, "tf.reduce_all"),
    Operation("count", numbering, twins.count, "twins.count"),
    Operation("argmin", entry_index, twins.argmin, "twins.argmin"),
    Operation("argmax", entry_index, twins.argmax, "twins.argmax"),
    Operation("spread", spread, twins.vector_of, "twins.vector_of"),
    Operation("ranks", peers, twins.ranks, "twins.ranks"),
    # the gradients
    Operation("norm_squared", nest_reduction, twins.norm_squared, "twins.norm_squared"),
    Operation("dot", nest_reduction, twins.dot, "twins.dot"),
    Operation("max_abs", nest_reduction, twins.largest_magnitude, "twins.largest_magnitude"),
    Operation("all_finite", nest_predicate, twins.all_finite, "twins.all_finite"),
)
VOCABULARY = {**OPERATORS, **{entry.name: entry for entry in _ENTRIES}}


def operate(name: str, *operands: object) -> Map:
    """The node of the operation by this name on these signals or numbers."""
    return apply(VOCABULARY[name], *operands)
