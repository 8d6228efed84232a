"""The squared norms of the tensors of an all-reduce: of this peer's values, and of the sums.

An attachment that copies the values through the processor computes them on the way, at hardly any cost; the others need
a pass over memory for each, with the same sums in the same order (``native/all_reduce/sum_of_squares.h``), and so
give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kungfu import native

# The bits of the float32 that stands for this peer's norm in a message: a NaN that no arithmetic makes. What only
# selects and copies it keeps the bits.
STANDS_FOR_NORM = 0x7FE44B46

_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


@dataclass(frozen=True)
class NormsWanted:
    """The norms of an all-reduce to compute, each a bool or a bool tensor; both are multiplied by ``factor``."""

    values: Any
    sums: Any
    factor: Any = 1.0


def norm_placeholder() -> Any:
    """Graph: float32 placeholder for the norm of this peer's values that travels with them."""
    return tf.bitcast(tf.constant(STANDS_FOR_NORM, tf.int32), tf.float32)


def norm_squared(tensors: Sequence[Any]) -> Any:
    """Graph: the sum of the squares of all entries, each as a float32, in float64; one pass over memory.

    It is TensorFlow's own sum, in float32, on accelerators, without a compiler, and for dtypes that no message
    supports.

    Args:
        tensors: Floating tensors of any shapes.

    Returns:
        A float64 scalar; 0 for no tensors.
    """
    if not tensors:
        return tf.zeros([], tf.float64)
    carried = all(tensor.dtype in _DTYPES for tensor in tensors)
    if carried and not tf.config.get_visible_devices("GPU") and native.is_available():
        return native.load().ops.kungfu_norm_squared(tensors)
    return 2.0 * tf.cast(tf.add_n([tf.nn.l2_loss(tf.cast(tensor, tf.float32)) for tensor in tensors]), tf.float64)


def where_wanted(wanted: Any, norm: Callable[[], Any]) -> Any:
    """Graph: the float64 norm in the steps that want it, and minus infinity in the others, which compute nothing."""
    nothing = tf.constant(-math.inf, tf.float64)
    if isinstance(wanted, bool):
        return norm() if wanted else nothing
    return tf.cond(wanted, norm, lambda: nothing)


def all_reduce_with_norms(
    all_reduce: Callable[[Sequence[Any]], list[Any]], values: Sequence[Any], *, wanted: NormsWanted, prescale: Any
) -> tuple[list[Any], Any, Any]:
    """Graph: ``Attachment.all_reduce_with_norms`` in separate passes, around an ``all_reduce`` of these values."""
    *counted, last = (tf.convert_to_tensor(value) for value in values)
    factor = tf.cast(wanted.factor, tf.float64)

    def norm_of_values() -> Any:
        return tf.cond(
            tf.equal(prescale, 0.0), lambda: tf.constant(math.nan, tf.float64), lambda: norm_squared(counted) * factor
        )

    norm = where_wanted(wanted.values, norm_of_values)
    if wanted.values is not False and last.dtype == tf.float32:
        stands = tf.equal(tf.bitcast(last, tf.int32), STANDS_FOR_NORM)
        last = tf.where(stands, tf.cast(norm, tf.float32), last)
    sums = all_reduce([*counted, last])
    return sums, norm, where_wanted(wanted.sums, lambda: norm_squared(sums[:-1]) * factor)
