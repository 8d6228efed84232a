"""NumPy kernels of the operations without a NumPy function; the reference for the TensorFlow kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

_SQUARES_BLOCK, _LANES = 512, 16
_LARGEST_WHOLE = 2**53  # above it, a float64 skips whole numbers


def floor_divide(x: Any, y: Any) -> Any:
    """``x // y``; for whole numbers 0 if y is 0, a case in which TensorFlow would raise an error in a step."""
    if np.issubdtype(x.dtype, np.floating):
        return np.floor_divide(x, y)
    return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y)))


def modulo(x: Any, y: Any) -> Any:
    """``x % y`` with the sign of y; if y is 0, 0 for whole numbers, else NaN."""
    if np.issubdtype(x.dtype, np.floating):
        return np.mod(x, y)
    return np.where(y == 0, 0, np.mod(x, np.where(y == 0, 1, y)))


def whole(x: Any) -> Any:
    """A number without its fraction, clipped to the range in which float64 is exact; 0 if it is not finite."""
    if not np.issubdtype(x.dtype, np.floating):
        return x.astype(np.int64)
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    return np.clip(np.trunc(finite), -_LARGEST_WHOLE, _LARGEST_WHOLE).astype(np.int64)


def take(vector: Any, index: Any) -> Any:
    """The entries at these indices (negative: from the end); NaN, 0 or False for an index out of range."""
    count = len(vector)
    at = np.where(index < 0, index + count, index)
    inside = (at >= 0) & (at < count)
    nothing = np.asarray(np.nan if vector.dtype == np.float32 else 0, vector.dtype)
    return np.where(inside, vector[np.clip(at, 0, count - 1)], nothing)


def scatter(vector: Any, index: Any, value: Any) -> Any:
    """The vector with `value` at `index` (negative: from the end); unchanged if the index is out of range."""
    at = np.where(index < 0, index + len(vector), index)
    return np.where(np.arange(len(vector)) == at, value, vector)


def push(vector: Any, value: Any) -> Any:
    """The vector without its first entry, and with `value` appended."""
    return np.append(vector[1:], value).astype(vector.dtype)


def fill(value: Any, size: Any) -> Any:
    """A vector that contains one value `size` times."""
    return np.full(int(size), value)


def ranks(size: Any) -> Any:
    """The ranks, 0 to size - 1."""
    return np.arange(int(size), dtype=np.int64)


def places(vector: Any) -> Any:
    """The indices of the entries, from 0."""
    return np.arange(len(vector), dtype=np.int64)


def count(x: Any) -> Any:
    """The number of true entries."""
    return np.int64(np.count_nonzero(x))


def argmin(x: Any) -> Any:
    """The index of the first smallest entry; NaN entries are skipped; 0 if all entries are NaN."""
    return np.argmin(np.where(np.isnan(x), np.inf, x)).astype(np.int64)


def argmax(x: Any) -> Any:
    """The index of the first largest entry; NaN entries are skipped; 0 if all entries are NaN."""
    return np.argmax(np.where(np.isnan(x), -np.inf, x)).astype(np.int64)


def of_present(reduction: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes a kernel that applies ``reduction`` to the entries that are not NaN; its result is NaN if all are NaN."""

    def reduced(vector: Any) -> Any:
        present = vector[~np.isnan(vector)]
        return np.float32(reduction(present)) if len(present) else np.float32(np.nan)

    return reduced


def norm_squared(leaves: Sequence[Any]) -> np.float32:
    """The sum of the squares of all entries; the sums of the tensors are added in the tensors' order."""
    return np.float32(reduce(add, map(sum_of_squares, leaves), np.float64(0.0)))


def sum_of_squares(leaf: Any) -> np.float64:
    """The sum of the squares of a tensor's entries, which are first converted to float32.

    Returns:
        A float64 with the same bits as in ``native/all_reduce/sum_of_squares.h``, because the additions have the same
        order: in each block of 512 entries, 16 lanes are summed and then added in halves; the sums of the blocks are
        added one after the other with compensated rounding.
    """
    entries = np.asarray(leaf, np.float32).reshape(-1).astype(np.float64)
    blocks = np.zeros((-(-len(entries) // _SQUARES_BLOCK), _SQUARES_BLOCK // _LANES, _LANES))
    blocks.reshape(-1)[: len(entries)] = entries * entries  # exact: a float32 has 24 bits of precision, a float64 53
    lanes = np.add.accumulate(blocks, axis=1)[:, -1]
    while lanes.shape[1] > 1:
        lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
    total, rounded_off = np.float64(0.0), np.float64(0.0)
    for block in lanes[:, 0]:
        old, total = total, total + block
        added = total - old
        rounded_off += (old - (total - added)) + (block - added)
    return total + rounded_off if np.isfinite(total + rounded_off) else total


def dot(leaves: Sequence[Any], others: Sequence[Any]) -> np.float32:
    """The sum of the elementwise products."""
    pairs = zip(leaves, others, strict=True)
    products = [np.sum(np.asarray(a, np.float32) * np.asarray(b, np.float32), dtype=np.float32) for a, b in pairs]
    return np.float32(np.sum(products, dtype=np.float32))


def largest_magnitude(leaves: Sequence[Any]) -> np.float32:
    """The largest absolute value of any entry; NaN if any entry is NaN, 0 if there is none."""
    largest = [np.max(np.abs(np.asarray(leaf, np.float32)), initial=0) for leaf in leaves]
    return np.float32(np.max(largest, initial=0))


def all_finite(leaves: Sequence[Any]) -> np.bool_:
    """True if no entry is NaN or infinite."""
    return np.bool_(all(np.all(np.isfinite(leaf)) for leaf in leaves))
