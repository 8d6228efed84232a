"""The maps that have no operator of Python: each is one operation, with its type rule and its two twins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kungfu.signal import Map, Signal, apply
from kungfu.signal.operation import (
    OPERATORS,
    Operation,
    arithmetic,
    fractional,
    nest_reduction,
    predicate,
    vector_reduction,
)

__all__ = [
    "VOCABULARY",
    "ceil",
    "clip",
    "exp",
    "floor",
    "is_finite",
    "log",
    "max",
    "maximum",
    "mean",
    "median",
    "min",
    "minimum",
    "norm_squared",
    "round",
    "sqrt",
    "sum",
    "where",
]


def _norm_squared(leaves: Sequence[Any]) -> np.float32:
    squares = [np.sum(np.square(np.asarray(leaf, np.float32)), dtype=np.float32) for leaf in leaves]
    return np.float32(np.sum(squares, dtype=np.float32))


_ENTRIES = (
    Operation("sqrt", fractional, np.sqrt, "tf.math.sqrt"),
    Operation("exp", fractional, np.exp, "tf.math.exp"),
    Operation("log", fractional, np.log, "tf.math.log"),
    Operation("round", fractional, np.rint, "tf.math.round"),
    Operation("floor", fractional, np.floor, "tf.math.floor"),
    Operation("ceil", fractional, np.ceil, "tf.math.ceil"),
    Operation("minimum", arithmetic, np.minimum, "twins.minimum"),
    Operation("maximum", arithmetic, np.maximum, "twins.maximum"),
    Operation("is_finite", predicate, np.isfinite, "tf.math.is_finite"),
    Operation("sum", vector_reduction, np.sum, "tf.reduce_sum"),
    Operation("mean", vector_reduction, np.mean, "tf.reduce_mean"),
    Operation("min", vector_reduction, np.min, "twins.smallest"),
    Operation("max", vector_reduction, np.max, "twins.largest"),
    Operation("median", vector_reduction, np.median, "twins.median"),
    Operation("norm_squared", nest_reduction, _norm_squared, "twins.norm_squared"),
)
VOCABULARY = {**OPERATORS, **{entry.name: entry for entry in _ENTRIES}}


def sqrt(x: Signal) -> Map:
    """The square root: float32, NaN below 0."""
    return apply(VOCABULARY["sqrt"], x)


def exp(x: Signal) -> Map:
    """The exponential: float32."""
    return apply(VOCABULARY["exp"], x)


def log(x: Signal) -> Map:
    """The natural logarithm: float32, NaN below 0."""
    return apply(VOCABULARY["log"], x)


def round(x: Signal) -> Map:
    """The nearest whole number, halves to the even one: float32."""
    return apply(VOCABULARY["round"], x)


def floor(x: Signal) -> Map:
    """The largest whole number that is not larger: float32."""
    return apply(VOCABULARY["floor"], x)


def ceil(x: Signal) -> Map:
    """The smallest whole number that is not smaller: float32."""
    return apply(VOCABULARY["ceil"], x)


def minimum(x: Signal | float, y: Signal | float) -> Map:
    """The smaller of two, entry by entry; NaN if either is."""
    return apply(VOCABULARY["minimum"], x, y)


def maximum(x: Signal | float, y: Signal | float) -> Map:
    """The larger of two, entry by entry; NaN if either is."""
    return apply(VOCABULARY["maximum"], x, y)


def clip(x: Signal, low: Signal | float, high: Signal | float) -> Map:
    """`x` held between `low` and `high`: ``min(max(x, low), high)``; NaN stays NaN.

    >>> from kungfu.signal import TrainingSignals
    >>> clip(TrainingSignals().size, 1, 8).type
    SignalType(dtype='int64', shape=())
    """
    return minimum(maximum(x, low), high)


def where(condition: Signal, then: Signal | float, otherwise: Signal | float) -> Map:
    """`then` where the condition is true, else `otherwise`; both are computed."""
    return apply(VOCABULARY["where"], condition, then, otherwise)


def is_finite(x: Signal) -> Map:
    """Whether a number is neither NaN nor infinite: bool."""
    return apply(VOCABULARY["is_finite"], x)


def sum(x: Signal) -> Map:
    """The sum over the peers of a vector with one entry each: float32 scalar."""
    return apply(VOCABULARY["sum"], x)


def mean(x: Signal) -> Map:
    """The mean over the peers of a vector with one entry each: float32 scalar."""
    return apply(VOCABULARY["mean"], x)


def min(x: Signal) -> Map:
    """The smallest entry of a vector with one entry a peer: float32 scalar, NaN if any entry is."""
    return apply(VOCABULARY["min"], x)


def max(x: Signal) -> Map:
    """The largest entry of a vector with one entry a peer: float32 scalar, NaN if any entry is."""
    return apply(VOCABULARY["max"], x)


def median(x: Signal) -> Map:
    """The median over the peers, the mean of the middle two for an even number: float32 scalar, NaN if any is."""
    return apply(VOCABULARY["median"], x)


def norm_squared(grads: Signal) -> Map:
    """The squared Euclidean norm of all gradients together: ``sum of g * g`` over every entry, float32 scalar.

    >>> from kungfu.signal import TrainingSignals
    >>> norm_squared(TrainingSignals().grads).placement
    'local'
    """
    return apply(VOCABULARY["norm_squared"], grads)
