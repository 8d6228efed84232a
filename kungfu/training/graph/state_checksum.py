"""Sends a checksum of the shared state with the message of a step, to detect differences between peers.

Between two steps only the program can change the shared variables: a callback that draws a learning rate without a
seed, for example, gives peers different values. Barriers compare the state, but may be far apart. So every N steps
each peer adds a checksum of its shared variables to the message; if the checksums differ, a barrier follows at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.runtime.api import digests, memory_of
from kungfu.training.graph.variable_io import read_variable, write_variable

# The checksum has 30 bits, in words of 6: their sum of squares is exact in float32 up to 4,227 peers.
_WORDS, _BITS = 5, 6
CHECKSUM_FLOATS = 2 * _WORDS


@dataclass(frozen=True)
class StateChecksum:
    """This peer's checksum, and the result of its last comparison with the other peers' checksums.

    Args:
        numbers: float32, the words of the checksum and their squares; zeros in a step without a comparison.
        differs: int64, 1 if the last message found that the checksums of the peers differ.
    """

    numbers: tf.Variable = field(default_factory=lambda: tf.Variable(tf.zeros([CHECKSUM_FLOATS]), trainable=False))
    differs: tf.Variable = field(default_factory=lambda: tf.Variable(0, dtype=tf.int64, trainable=False))

    def offer(self, checksum: int | None) -> None:
        """Host: adds a checksum to the message of the next step; with ``None`` that step compares nothing."""
        words = [0 if checksum is None else checksum >> _BITS * place & (1 << _BITS) - 1 for place in range(_WORDS)]
        write_variable(self.numbers, [float(one) for one in (*words, *(word**2 for word in words))])

    def compared(self, sums: Any, size: Any) -> Any:
        """Graph: 1 if the peers' checksums differ, else 0 (int64), from the sums of ``numbers`` over the peers."""
        # Numbers x of n peers are all equal exactly if n * sum(x**2) == sum(x)**2.
        words, squares = tf.split(tf.cast(sums, tf.float64), 2)
        unlike = tf.reduce_any(tf.not_equal(tf.cast(size, tf.float64) * squares, tf.square(words)))  # pow rounds
        return self.differs.assign(tf.cast(unlike, tf.int64))

    def is_unlike(self) -> bool:
        """Host: True if the last message found that the checksums differ."""
        return bool(read_variable(self.differs))


def checksum_of(variables: Sequence[tf.Variable]) -> int:
    """A 32-bit checksum of the contents of variables, in their order.

    Cost:
        One pass over their memory.

    >>> checksum_of([tf.Variable([1.0, 2.0])]) == checksum_of([tf.Variable([2.0, 1.0])])
    False
    """
    return zlib.crc32(np.array(digests(memory_of(variables)), np.uint64).tobytes())
