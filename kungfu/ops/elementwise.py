"""Elementwise maps: scalars give a scalar; vectors, or a scalar and a vector, give a vector."""

from __future__ import annotations

from typing import get_args

from kungfu.errors import PolicyError
from kungfu.signal import DType, Map, Signal, as_signal, operate


def constant(value: bool | int | float) -> Signal:
    """A number or truth value that is the same in every step. Python numbers are converted where a signal is due."""
    return as_signal(value)


def cast(x: Signal | float, dtype: DType) -> Map:
    """The same value in another dtype.

    A number is true unless it is 0, and a truth value becomes 1 or 0. A float32 cast to int64 loses its fraction and is
    clipped to ±2**53; a value that is not finite becomes 0.

    Args:
        x: A number or a truth value.
        dtype: "bool", "int64" or "float32".

    Raises:
        PolicyError: There is no such dtype.

    >>> from kungfu.signal import TrainingSignals
    >>> str(cast(TrainingSignals().mean_loss, "int64").type)
    'int64'
    """
    if dtype not in get_args(DType):
        raise PolicyError(f"cast(x, {dtype!r}): a signal is one of {', '.join(map(repr, get_args(DType)))}")
    return operate(f"to_{dtype}", x)


def abs(x: Signal | float) -> Map:
    """The absolute value, of the same dtype."""
    return operate("abs", x)


def sqrt(x: Signal | float) -> Map:
    """The square root: float32, NaN below 0."""
    return operate("sqrt", x)


def exp(x: Signal | float) -> Map:
    """The exponential: float32."""
    return operate("exp", x)


def log(x: Signal | float) -> Map:
    """The natural logarithm: float32, NaN below 0."""
    return operate("log", x)


def round(x: Signal | float) -> Map:
    """The nearest whole number, with halves rounded to even: float32."""
    return operate("round", x)


def floor(x: Signal | float) -> Map:
    """The largest whole number up to `x`: float32."""
    return operate("floor", x)


def ceil(x: Signal | float) -> Map:
    """The smallest whole number from `x` on: float32."""
    return operate("ceil", x)


def minimum(x: Signal | float, y: Signal | float) -> Map:
    """The smaller of two numbers, entry by entry; NaN if either is NaN."""
    return operate("minimum", x, y)


def maximum(x: Signal | float, y: Signal | float) -> Map:
    """The larger of two numbers, entry by entry; NaN if either is NaN."""
    return operate("maximum", x, y)


def clip(x: Signal | float, low: Signal | float, high: Signal | float) -> Map:
    """A number clipped to two bounds.

    Returns:
        ``min(max(x, low), high)``; NaN stays NaN.

    >>> from kungfu.signal import TrainingSignals
    >>> clip(TrainingSignals().size, 1, 8).type
    SignalType(dtype='int64', shape=())
    """
    return minimum(maximum(x, low), high)


def is_finite(x: Signal | float) -> Map:
    """True if a number is neither NaN nor infinite: bool."""
    return operate("is_finite", x)
