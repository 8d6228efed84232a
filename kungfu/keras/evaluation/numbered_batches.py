"""The data of ``evaluate`` and ``predict`` as numbered batches, which are split among the peers.

The batches are the whole batches that Keras would form: a batch's loss is a mean, so half a batch would not have half
of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.framework_internals import dataset_order
from kungfu.training.data.checksums import checksum, has_rows, spread_rows

_BATCH_SIZE = 32  # Keras' default


@dataclass(frozen=True)
class NumberedBatches:
    """Batches with the numbers 0 to ``count - 1``.

    Args:
        checksum: A checksum of some of the data; equal on peers with the same data.
        part: Returns the arguments with which Keras processes only the batches with the given numbers (at least one).
    """

    count: int
    checksum: int
    part: Callable[[Sequence[int]], dict[str, Any]]


_NONE = NumberedBatches(0, 0, lambda numbers: {})


def numbered_batches(given: Mapping[str, Any]) -> NumberedBatches:
    """The batches of a call of ``evaluate`` or ``predict`` with these arguments.

    Returns:
        The batches; no batches (``count`` is 0) if they cannot be numbered, as for a generator, or a Dataset of unknown
        length or in random order.
    """
    x, steps = given["x"], given.get("steps")
    if isinstance(x, tf.data.Dataset):
        return _of_dataset(x, steps)
    if isinstance(x, keras.utils.PyDataset):
        return _of_py_dataset(x, steps)
    data = {name: given[name] for name in ("x", "y", "sample_weight") if given.get(name) is not None}
    leaves = tf.nest.flatten(data)
    if (
        "x" not in data
        or not all(map(has_rows, leaves))
        or len({len(one) for one in leaves}) != 1
        or not len(leaves[0])
    ):
        return _NONE  # left to Keras, or to its errors
    return _of_arrays(data, int(given.get("batch_size") or _BATCH_SIZE), steps)


def _limited(count: int, steps: int | None) -> int:
    return count if steps is None else min(count, int(steps))


def _is_run(numbers: Sequence[int]) -> bool:
    return numbers[-1] - numbers[0] == len(numbers) - 1


def _of_arrays(data: Mapping[str, Any], batch_size: int, steps: int | None) -> NumberedBatches:
    samples = len(tf.nest.flatten(data)[0])

    def part(numbers: Sequence[int]) -> dict[str, Any]:
        # The numbers are usually a contiguous run, so slices are views; after a loss of peers there may be gaps.
        rows: Any = slice(numbers[0] * batch_size, (numbers[-1] + 1) * batch_size)
        if not _is_run(numbers):
            starts = np.array(numbers)[:, None] * batch_size
            rows = (starts + np.arange(batch_size)).ravel()
            rows = rows[rows < samples]
        return {**tf.nest.map_structure(lambda leaf: _rows(leaf, rows), data), "batch_size": batch_size}

    return NumberedBatches(_limited(-(-samples // batch_size), steps), _checksum(data, batch_size=batch_size), part)


def _rows(leaf: Any, rows: Any) -> Any:
    if hasattr(leaf, "iloc"):
        return leaf.iloc[rows]
    return tf.gather(leaf, rows) if isinstance(leaf, tf.Tensor) and not isinstance(rows, slice) else leaf[rows]


def _checksum(data: Any, *, batch_size: int = 0) -> int:
    """A checksum over all bits of some rows of the data, and over the shapes and the size of a batch."""
    leaves = tf.nest.flatten(data)
    looks = np.array(str([batch_size, *(tuple(one.shape) for one in leaves)]))
    return checksum([looks, *(np.asarray(_rows(one, spread_rows(one.shape))) for one in leaves)])


def _of_dataset(dataset: Any, steps: int | None) -> NumberedBatches:
    """The batches of a Dataset; a peer reads the batches before its part without processing them."""
    count = _limited(int(dataset.cardinality()), steps)
    # The count is unknown or infinite, or one number stands for different batches on different peers or readings.
    if count <= 0 or dataset_order(dataset) == "by chance":
        return _NONE
    first = next(iter(dataset), None)
    if first is None or not all(isinstance(one, tf.Tensor) and one.shape.rank for one in tf.nest.flatten(first)):
        return _NONE

    def part(numbers: Sequence[int]) -> dict[str, Any]:
        if _is_run(numbers):
            return {"x": dataset.skip(numbers[0]).take(len(numbers))}
        wanted = tf.constant(numbers, tf.int64)
        chosen = dataset.enumerate().filter(lambda number, _: tf.reduce_any(tf.equal(number, wanted)))
        # Keras needs the cardinality, which the filter has removed.
        return {"x": chosen.map(lambda _, batch: batch).apply(tf.data.experimental.assert_cardinality(len(numbers)))}

    return NumberedBatches(count, _checksum(first), part)


class _Chosen(keras.utils.PyDataset):
    """A PyDataset that consists of the batches ``numbers`` of the PyDataset ``whole``."""

    def __init__(self, whole: Any, numbers: Sequence[int]) -> None:
        how = {name: getattr(whole, name) for name in ("workers", "use_multiprocessing", "max_queue_size")}
        super().__init__(**how)
        self._whole, self._numbers = whole, list(numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        return self._whole[self._numbers[index]]


def _of_py_dataset(whole: Any, steps: int | None) -> NumberedBatches:
    count = _limited(int(whole.num_batches or 0), steps)
    if count <= 0:
        return _NONE
    first = [one for one in tf.nest.flatten(whole[0]) if one is not None]
    if not all(map(has_rows, first)):
        return _NONE
    return NumberedBatches(count, _checksum(first), lambda numbers: {"x": _Chosen(whole, numbers)})
