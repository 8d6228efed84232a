"""Which variables differ between peers: what is alike everywhere need not be averaged, or sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.runtime.api import digests, memory_of

__all__ = ["unlike"]

_PARTS = 4  # of a digest of 64 bits: the squares of 16 bits each can be summed over many peers without overflow


def unlike(
    variables: Sequence[tf.Variable], *, size: int, total: Callable[[Sequence[Any]], Sequence[Any]]
) -> list[int]:
    """The places of those variables that are not bit for bit the same on all of ``size`` peers; agreed.

    ``total`` gives the sums over the peers of tensors. Numbers ``x`` of ``n`` peers are all the same exactly where
    ``n * sum(x**2) == sum(x)**2`` (Cauchy and Schwarz), which every peer computes alike from the two sums.
    Cost: a pass over the variables' memory, and a message with 64 bytes for each of them.

    >>> unlike([tf.Variable([1.0]), tf.Variable([2.0])], size=2, total=lambda given: [2 * one for one in given])
    []
    """
    words = np.array(digests(memory_of(variables)), np.uint64)
    parts = words.view(np.uint16).astype(np.int64)
    sums, squares = (one.numpy() for one in total([tf.constant(parts), tf.constant(parts**2)]))
    alike = (sums**2 == size * squares).reshape(-1, _PARTS).all(axis=1)
    return [int(place) for place in np.flatnonzero(~alike)]
