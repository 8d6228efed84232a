"""TensorFlow kernels of the operations without a TensorFlow op; see `kungfu.signal.operation`."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

_LARGEST_WHOLE = float(2**53)


def floor_divide(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """``x // y``; for whole numbers 0 if y is 0, a case in which TensorFlow's op would raise an error in a step."""
    if x.dtype.is_floating:
        rest, other_sign = _remainder(x, y)
        quotient = (x - rest) / y - tf.cast(other_sign, x.dtype)
        # The quotient is whole but for rounding, so it is rounded to the nearest whole number, not down.
        return tf.where(tf.equal(y, 0), x / y, tf.math.round(quotient))
    return tf.where(tf.equal(y, 0), tf.zeros_like(x), tf.math.floordiv(x, _divisor(y)))


def modulo(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """``x % y`` with the sign of y; if y is 0, 0 for whole numbers, else NaN."""
    if x.dtype.is_floating:
        rest, other_sign = _remainder(x, y)
        return tf.where(other_sign, rest + y, rest)
    return tf.where(tf.equal(y, 0), tf.zeros_like(x), tf.math.floormod(x, _divisor(y)))


def _remainder(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The remainder of the division rounded towards 0, and true if the remainder has not the sign of `y`."""
    rest = tf.truncatemod(x, y)
    return rest, tf.not_equal(rest, 0) & tf.not_equal(rest < 0, y < 0)


def _divisor(y: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.equal(y, 0), tf.ones_like(y), y)


def to_bool(x: tf.Tensor) -> tf.Tensor:
    """True if a number is not 0."""
    return tf.cast(x, tf.bool)


def to_float32(x: tf.Tensor) -> tf.Tensor:
    """A number as float32; True is 1."""
    return tf.cast(x, tf.float32)


def whole(x: tf.Tensor) -> tf.Tensor:
    """A number without its fraction, clipped to the range in which float64 is exact; 0 if it is not finite."""
    if not x.dtype.is_floating:
        return tf.cast(x, tf.int64)
    finite = tf.cast(tf.where(tf.math.is_finite(x), x, tf.zeros_like(x)), tf.float64)
    return tf.cast(tf.clip_by_value(finite, -_LARGEST_WHOLE, _LARGEST_WHOLE), tf.int64)


def minimum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The smaller number; NaN if either is NaN, with every kernel and on every processor."""
    return _or_nan(tf.minimum(x, y), x, y)


def maximum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The larger number; NaN if either is NaN, with every kernel and on every processor."""
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


def sum_present(x: tf.Tensor) -> tf.Tensor:
    """The sum of the entries that are not NaN; NaN if all are NaN."""
    return _of_any(tf.reduce_sum(_filled(x, 0.0)), x)


def mean_present(x: tf.Tensor) -> tf.Tensor:
    """The mean of the entries that are not NaN; NaN if all are NaN."""
    return tf.reduce_sum(_filled(x, 0.0)) / tf.cast(tf.math.count_nonzero(~tf.math.is_nan(x)), x.dtype)


def std_present(x: tf.Tensor) -> tf.Tensor:
    """The standard deviation (over n, not n - 1) of the n entries that are not NaN; NaN if all are NaN."""
    absent = tf.math.is_nan(x)
    squares = tf.reduce_sum(tf.where(absent, tf.zeros_like(x), tf.math.square(x - mean_present(x))))
    return tf.math.sqrt(squares / tf.cast(tf.math.count_nonzero(~absent), x.dtype))


def min_present(x: tf.Tensor) -> tf.Tensor:
    """The smallest of the entries that are not NaN; NaN if all are NaN."""
    return _of_any(tf.reduce_min(_filled(x, float("inf"))), x)


def max_present(x: tf.Tensor) -> tf.Tensor:
    """The largest of the entries that are not NaN; NaN if all are NaN."""
    return _of_any(tf.reduce_max(_filled(x, -float("inf"))), x)


def median_present(x: tf.Tensor) -> tf.Tensor:
    """The median of the entries that are not NaN; NaN if all are NaN."""
    ordered = tf.sort(_filled(x, float("inf")))
    last = tf.maximum(tf.math.count_nonzero(~tf.math.is_nan(x)) - 1, 0)
    return _of_any((ordered[last // 2] + ordered[(last + 1) // 2]) / 2, x)


def _filled(x: tf.Tensor, value: float) -> tf.Tensor:
    return tf.where(tf.math.is_nan(x), tf.constant(value, x.dtype), x)


def _of_any(result: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.reduce_all(tf.math.is_nan(x)), tf.constant(float("nan"), x.dtype), result)


def argmin(x: tf.Tensor) -> tf.Tensor:
    """The index of the first smallest entry; NaN entries are skipped; 0 if all entries are NaN."""
    return tf.argmin(_filled(x, float("inf")))


def argmax(x: tf.Tensor) -> tf.Tensor:
    """The index of the first largest entry; NaN entries are skipped; 0 if all entries are NaN."""
    return tf.argmax(_filled(x, -float("inf")))


def take(vector: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """The entries at these indices (negative: from the end); NaN, 0 or False for an index out of range."""
    length = tf.size(vector, tf.int64)
    at = tf.where(index < 0, index + length, index)
    inside = (at >= 0) & (at < length)
    nothing = tf.constant(float("nan"), vector.dtype) if vector.dtype.is_floating else tf.zeros([], vector.dtype)
    return tf.where(inside, tf.gather(vector, tf.clip_by_value(at, 0, length - 1)), nothing)


def scatter(vector: tf.Tensor, index: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """The vector with `value` at `index` (negative: from the end); unchanged if the index is out of range."""
    length = tf.size(vector, tf.int64)
    at = tf.where(index < 0, index + length, index)
    return tf.where(tf.equal(tf.range(length), at), value, vector)


def push(vector: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """The vector without its first entry, and with `value` appended."""
    return tf.concat([vector[1:], [value]], axis=0)


def fill(value: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """A vector that contains one value `size` times."""
    return tf.fill([size], value)


def places(vector: tf.Tensor) -> tf.Tensor:
    """The indices of the entries, from 0."""
    return tf.range(tf.size(vector, tf.int64))


def norm_squared(leaves: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of the squares of all entries of all tensors."""
    if not leaves:
        return tf.zeros([], tf.float32)
    # Half the sum of squares in one pass: squaring first would write a second copy of the gradients.
    return 2 * tf.add_n([tf.nn.l2_loss(tf.cast(leaf, tf.float32)) for leaf in leaves])


def dot(leaves: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of the elementwise products."""
    if not leaves:
        return tf.zeros([], tf.float32)
    return tf.add_n([tf.tensordot(_flat(a), _flat(b), 1) for a, b in zip(leaves, others, strict=True)])


def largest_magnitude(leaves: Sequence[tf.Tensor]) -> tf.Tensor:
    """The largest absolute value of any entry; NaN if any entry is NaN, 0 if there is none."""
    if not leaves:
        return tf.zeros([], tf.float32)
    return largest(tf.stack([0.0, *(largest(tf.abs(_flat(leaf))) for leaf in leaves)]))


def all_finite(leaves: Sequence[tf.Tensor]) -> tf.Tensor:
    """True if no entry is NaN or infinite."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves]) if leaves else tf.constant(True)


def _flat(leaf: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.cast(leaf, tf.float32), [-1])
