"""Checksums of samples, by which peers verify that they hold the same samples in the same order.

Each peer computes the checksums from its local data, and the peers compare only these numbers. Checksums tolerate the
different rounding of another machine, and, if the targets identify the samples, random augmentation of the inputs.
"""

from __future__ import annotations

import zlib
from collections import Counter
from math import lgamma, log
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

# The largest part of an array that is read: a full pass would read all of a memory-mapped array from the disk.
_MOST_ROWS, _MOST_NUMBERS = 1024, 1 << 20
# The number of distinguishable orders of the targets from which the targets identify the samples.
_MANY_ORDERS = 2.0**20


def checksum(batch: Any) -> int:
    """A checksum of a batch; equal contents have the same checksum on all peers."""
    return zlib.crc32(b"".join(np.ascontiguousarray(one).tobytes() for one in _contents(batch)))


def order_checksum(arrays: Any, targets: Any = None) -> int:
    """A checksum that is equal on peers with the same samples in the same order, from rows spread over the arrays.

    Rows of floats count only by how they compare with the next row, since their last digits differ by processor.

    Args:
        arrays: All arrays, any nest with one entry per sample.
        targets: The targets, which are compared alone if they distinguish the order of the samples.
    """
    seen = _spread(targets)
    if not _identify_samples(seen):
        seen = _spread(arrays)
    return checksum([one[1:] > one[:-1] if one.dtype.kind == "f" else one for one in seen])


def samples_checksum(batch: Any) -> int:
    """A checksum that is equal for the same samples in the same order, even if their inputs are augmented at random.

    If the targets of a batch are too similar to identify its samples, inputs count as well.
    """
    _, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    return checksum((y, sample_weight) if _identify_samples(y) else batch)


def has_rows(leaf: Any) -> bool:
    """True for an array of at least one dimension, neither ragged nor sparse, so that it has rows of one shape."""
    is_odd = isinstance(leaf, tf.RaggedTensor | tf.SparseTensor) or type(leaf).__module__.startswith("scipy")
    return not is_odd and len(getattr(leaf, "shape", ())) > 0


def spread_rows(shape: Any) -> NDArray[np.int64]:
    """The indices of the rows to read from an array of this shape, spread over the whole array."""
    samples, *row = map(int, shape)
    count = min(samples, _MOST_ROWS, max(2, _MOST_NUMBERS // max(1, int(np.prod(row)))))
    return np.unique(np.linspace(0, samples - 1, count).astype(np.int64))


def _spread(arrays: Any) -> list[NDArray[Any]]:
    """The same rows of each array; the array with the most values per row limits the number of rows."""
    leaves = [np.asarray(one) for one in tf.nest.flatten(arrays) if one is not None]
    rows = min((spread_rows(one.shape) for one in leaves), key=len, default=np.zeros(0, np.int64))
    return [one[rows] for one in leaves]


def _identify_samples(targets: Any) -> bool:
    """True if other samples, or another order, would hardly have the same targets.

    Of n targets, c_i of which have the i-th value, n! / (c_1! c_2! ...) orders are distinguishable; without targets 1.
    """
    columns = _contents(targets)
    rows = range(len(columns[0])) if columns else ()
    counts = Counter(b"".join(one[row].tobytes() for one in columns) for row in rows)
    return lgamma(counts.total() + 1) - sum(lgamma(one + 1) for one in counts.values()) > log(_MANY_ORDERS)


def _contents(batch: Any) -> list[Any]:
    """The arrays of a batch, with arrays of objects converted: the bytes of objects would be addresses."""
    arrays = [np.asarray(one) for one in tf.nest.flatten(batch) if one is not None]
    for number, array in enumerate(arrays):
        if array.dtype == object:
            texts = [one.encode() if isinstance(one, str) else one for one in array.flat]
            arrays[number] = np.array(texts, dtype="S").reshape(array.shape)
    return arrays
