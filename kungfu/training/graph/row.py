"""Many numbers of the graph in one row for the host.

With TensorFlow's own ops each of them costs the step a read, a cast and a part of a stack: some 2 microseconds, and
twice that while training has the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kungfu.native import handle_of, is_available, load

__all__ = ["row_of"]


def row_of(numbers: Sequence[Any]) -> Any:
    """Graph: float64 vector of scalars and vectors in their order, which holds whole numbers up to 2 ** 53.

    A variable may stand for its value. Where the native library cannot be had the row is made op by op.
    """
    if not is_available():
        return tf.concat([tf.reshape(tf.cast(one, tf.float64), [-1]) for one in numbers], axis=0)
    read = [place for place, one in enumerate(numbers) if isinstance(one, tf.Variable)]
    given = [place for place, one in enumerate(numbers) if not isinstance(one, tf.Variable)]
    where = {place: turn for turn, place in enumerate([*read, *given])}
    with tf.device("/CPU:0"):
        return load().ops.kungfu_numbers(
            [handle_of(numbers[place]) for place in read],
            [tf.convert_to_tensor(numbers[place]) for place in given],
            order=[where[place] for place in range(len(numbers))],
        )
