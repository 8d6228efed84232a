"""The squared norms of the tensors of an all-reduce: of this peer's values, and of the sums.

An attachment that copies the values with the processor computes the norms while copying, at almost no cost. Other
attachments need a pass over memory for each norm. Both methods add the same terms in the same order
(``native/all_reduce/sum_of_squares.h``), so their results have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kungfu import native

# The bits of a float32 that stands for this peer's norm in a message: a NaN that no arithmetic produces. Ops that only
# select or copy the value keep the bits.
STANDS_FOR_NORM = 0x7FE44B46

_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


@dataclass(frozen=True)
class NormsWanted:
    """The requested norms of an all-reduce: two flags (each a bool or a bool tensor), for its values and for its sums.

    ``factor`` multiplies both squared norms.
    """

    values: Any
    sums: Any
    factor: Any = 1.0


def norm_placeholder() -> Any:
    """Graph: the float32 placeholder that is replaced by the norm of this peer's values when a message is sent."""
    return tf.bitcast(tf.constant(STANDS_FOR_NORM, tf.int32), tf.float32)


def norm_squared(tensors: Sequence[Any]) -> Any:
    """Graph: the sum of the squares of all entries, read as float32 and added in float64; one pass over memory.

    On accelerators, without a compiler, and for dtypes that no message supports, TensorFlow computes the sum in
    float32.

    Args:
        tensors: Floating-point tensors of any shapes.

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
    """Graph: the float64 norm in steps that request it; minus infinity, without computation, in other steps."""
    nothing = tf.constant(-math.inf, tf.float64)
    if isinstance(wanted, bool):
        return norm() if wanted else nothing
    return tf.cond(wanted, norm, lambda: nothing)


def all_reduce_with_norms(
    all_reduce: Callable[[Sequence[Any]], list[Any]], values: Sequence[Any], *, wanted: NormsWanted, prescale: Any
) -> tuple[list[Any], Any, Any]:
    """Graph: `Attachment.all_reduce_with_norms` on any ``all_reduce``; passes before and after it compute the norms."""
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
