"""TensorFlow twins of the operations whose meaning TensorFlow's own ops do not have; see `kungfu.signal.operation`."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

__all__ = ["floor_divide", "largest", "maximum", "median", "minimum", "modulo", "norm_squared", "smallest"]


def floor_divide(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """``x // y``, and 0 where y is 0: TensorFlow's own op would raise in the middle of a step."""
    return tf.where(tf.equal(y, 0), tf.zeros_like(x), tf.math.floordiv(x, _divisor(y)))


def modulo(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """``x % y`` with the sign of y, and 0 where y is 0."""
    return tf.where(tf.equal(y, 0), tf.zeros_like(x), tf.math.floormod(x, _divisor(y)))


def _divisor(y: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.equal(y, 0), tf.ones_like(y), y)


def minimum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The smaller one, NaN if either is NaN on every kernel and processor."""
    return _or_nan(tf.minimum(x, y), x, y)


def maximum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The larger one, NaN if either is NaN on every kernel and processor."""
    return _or_nan(tf.maximum(x, y), x, y)


def _or_nan(result: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    if not result.dtype.is_floating:
        return result
    return tf.where(tf.math.is_nan(x) | tf.math.is_nan(y), tf.constant(float("nan"), result.dtype), result)


def smallest(x: tf.Tensor) -> tf.Tensor:
    """The smallest entry of a vector, NaN if any entry is NaN."""
    return _vector_or_nan(tf.reduce_min(x), x)


def largest(x: tf.Tensor) -> tf.Tensor:
    """The largest entry of a vector, NaN if any entry is NaN."""
    return _vector_or_nan(tf.reduce_max(x), x)


def median(x: tf.Tensor) -> tf.Tensor:
    """The middle entry of a vector, or the mean of the middle two; NaN if any entry is NaN."""
    ordered = tf.sort(x)
    last = tf.size(x) - 1
    middle = (ordered[last // 2] + ordered[(last + 1) // 2]) / 2
    return _vector_or_nan(middle, x)


def _vector_or_nan(result: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    any_nan = tf.reduce_any(tf.math.is_nan(x))
    return tf.where(any_nan, tf.constant(float("nan"), x.dtype), result)


def norm_squared(leaves: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of the squares of every entry of every tensor."""
    if not leaves:
        return tf.zeros([], tf.float32)
    return tf.add_n([tf.reduce_sum(tf.square(tf.cast(leaf, tf.float32))) for leaf in leaves])
