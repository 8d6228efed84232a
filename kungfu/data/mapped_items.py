"""Items that a TensorFlow function maps to samples: ``from_tensor_slices(items).map(function)``, by index.

A ``tf.data.Dataset`` is read from its start, so every peer of a job reads all of it. With `mapped` a peer computes only
the samples of its slice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.data.indexed_samples import IndexedSamples, spec_of
from kungfu.errors import UsageError
from kungfu.training.data.refusals import refuse_readers


def mapped(items: Any, function: Callable[..., Any], *, readers: int = 4) -> MappedItems:
    """The samples of ``tf.data.Dataset.from_tensor_slices(items).map(function)``, by index.

    For ``training.batches`` and for Keras' ``fit``. Samples are accessed in the job's shuffled order, so a
    peer reads and computes only the samples that it trains on, no shuffle buffer is needed, and a joining peer begins
    at once. Leave ``shuffle``, ``batch`` and ``repeat`` to the loop.

    Args:
        items: A nest of arrays with one entry per sample, such as the names of files and their classes; or a whole
            number, for the numbers below it, as in ``Dataset.range``.
        function: Computes a sample from one item by TensorFlow ops, as in ``dataset.map``: it is called with the parts
            of a tuple as its arguments, and returns a nest of tensors of fixed shapes; it is traced once. For ``fit``
            it returns ``x``, ``(x, y)`` or ``(x, y, sample_weight)``. It may change samples at random.
        readers: The number of items of a batch computed in parallel. The result does not depend on it.

    Returns:
        The samples. ``dataset(batch_size)`` gives them as a ``tf.data.Dataset``, for ``evaluate``.

    Raises:
        UsageError: There is no item, the arrays have different lengths, or samples are of unknown shape. An error in
            the function is raised from the loop, with a note on the samples.

    >>> import kungfu as kf
    >>> numbers, names = np.arange(5), np.array(["a", "b", "c", "d", "e"])
    >>> squares = kf.data.mapped((numbers, names), lambda number, name: (number**2, tf.strings.length(name)))
    >>> len(squares), squares.take(np.array([3, 1]))[0].numpy().tolist()
    (5, [9, 1])
    """
    refuse_readers(readers, of="kf.data.mapped")
    if isinstance(items, tf.data.Dataset) or not callable(function):
        raise UsageError(
            f"kf.data.mapped() was given {type(items).__name__} and {type(function).__name__}: it takes what "
            "Dataset.from_tensor_slices() and .map() would be given, arrays (or a whole number) and a function of one "
            "of their entries"
        )
    if isinstance(items, int | np.integer):
        items = np.arange(int(items))
    arrays = tf.nest.map_structure(np.asarray, items)
    lengths = {one.shape[0] if one.ndim else 0 for one in tf.nest.flatten(arrays)}
    if len(lengths) != 1 or lengths == {0}:
        raise UsageError(
            f"kf.data.mapped() was given arrays of {sorted(lengths)} entries: all have as many, at least one, and a "
            "list of numbers or names is made one by np.array(...)"
        )
    return MappedItems(arrays, function, readers=int(readers))


class MappedItems(IndexedSamples):
    """The samples that a function computes from items; see `mapped`."""

    def __init__(self, arrays: Any, function: Callable[..., Any], *, readers: int) -> None:
        self._arrays, self._samples = arrays, len(tf.nest.flatten(arrays)[0])
        first = tf.nest.map_structure(lambda one: tf.constant(one[0]), arrays)
        dataset = tf.data.Dataset.from_tensors(first).map(function)
        self.sample_spec = spec = spec_of(dataset, of="kf.data.mapped(function)")

        def sample(item: Any) -> Any:
            return function(*item) if isinstance(item, tuple) else function(item)

        def stacked(chosen: Any) -> Any:
            return tf.map_fn(sample, chosen, fn_output_signature=spec, parallel_iterations=readers)

        signature = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape], one.dtype), first)
        self._sample = tf.function(stacked, input_signature=[signature])

    @property
    def samples(self) -> int:
        """The number of items."""
        return self._samples

    def take(self, indices: NDArray[np.int64]) -> Any:
        """The samples with these indices, stacked."""
        return self._sample(tf.nest.map_structure(lambda one: tf.constant(one[indices]), self._arrays))
