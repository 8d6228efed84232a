"""Samples read by index: made from records by a Python function, or from items by a TensorFlow function.

A ``tf.data.Dataset`` is read from its start, so every peer of a job reads all of it. With samples by index, a peer
loads only the samples that it trains on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import UsageError
from kungfu.training.data.sample_source import Records, SampleSource, refuse_readers, refuse_unnumbered


class IndexedSamples(SampleSource):
    """Samples that are read by their index, for ``training.batches`` and for Keras' ``fit``."""

    def __len__(self) -> int:
        return self.samples

    @property
    @abstractmethod
    def samples(self) -> int:
        """The number of samples."""

    @cached_property
    def sample_spec(self) -> Any:
        """The spec of every sample, a nest of `tf.TensorSpec`, found by loading the first sample."""
        first = self.apart().take(np.zeros(1, np.int64))
        return tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape[1:], one.dtype), first)

    @abstractmethod
    def take(self, indices: NDArray[np.int64]) -> Any:
        """The samples with these indices, stacked."""

    def apart(self) -> IndexedSamples:
        """The same samples for use in another thread; a copy if loading changes the state of this object."""
        return self

    def dataset(self, batch_size: int) -> tf.data.Dataset:
        """All samples in batches, in order, for ``validation_data``, ``evaluate`` and ``predict``."""
        starts = range(0, self.samples, batch_size)

        def batches() -> Any:
            samples = self.apart()
            for start in starts:
                yield samples.take(np.arange(start, min(start + batch_size, samples.samples)))

        spec = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape], one.dtype), self.sample_spec)
        made = tf.data.Dataset.from_generator(batches, output_signature=spec)
        return made.apply(tf.data.experimental.assert_cardinality(len(starts))).prefetch(1)


def places_of(indices: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The file number of each sample, and its row in the file; file ``i`` ends before sample ``ends[i]``."""
    files = np.searchsorted(ends, indices, side="right")
    return files, indices - np.concatenate([[0], ends])[files]


def spec_of(dataset: tf.data.Dataset, *, of: str) -> Any:
    """The spec of the samples that a Dataset yields, as a nest of `tf.TensorSpec`.

    Raises:
        UsageError: The samples cannot be stacked; the message names ``of``, the function that returned them.
    """
    spec = dataset.element_spec
    for one in tf.nest.flatten(spec):
        if not isinstance(one, tf.TensorSpec):
            raise UsageError(
                f"{of} gives a {type(one).__name__}: the samples of a batch are stacked, and so dense and of one "
                "shape; take tf.io.FixedLenFeature, or make it dense and pad it"
            )
        if one.shape.rank is None:
            raise UsageError(
                f"{of} gives a tensor of unknown shape, as tf.io.decode_image and tf.io.parse_tensor do: say it with "
                "tf.ensure_shape(tensor, [...])"
            )
    return spec


# ---- records of the program ------------------------------------------------------------------------------------------


def records(records: Any, load: Callable[[Any], Any], *, readers: int = 1) -> LoadedRecords:
    """Records that a function turns into samples, for ``training.batches`` and for Keras' ``fit``.

    Samples are accessed by index in the job's shuffled order, so a peer loads only the samples that it trains on, each
    when it is needed. ``training.batches(records, load=...)`` does the same for a custom loop.

    Args:
        records: A sequence with one record per sample, such as a list of files: any object with a length whose items
            are numbered from 0.
        load: Turns one record into a nest of arrays; the shapes and types must be the same for all records. For ``fit``
            it returns ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
        readers: The number of threads that call ``load`` at once, for the records of one batch; ``load`` must be
            thread-safe. The result does not depend on the number of threads.

    Returns:
        The samples. ``dataset(batch_size)`` returns them as a ``tf.data.Dataset``, for ``evaluate``.

    Raises:
        UsageError: ``records`` is not a sequence, or is empty, or ``readers`` is not a number. An error in ``load`` is
            raised from the loop, with a note on the samples; of several errors in a batch, the first is raised.

    Cost:
        The call loads one record, to determine the spec of the samples.

    >>> import kungfu as kf, numpy as np
    >>> squares = kf.data.records(range(5), lambda number: (float(number), float(number**2)), readers=2)
    >>> len(squares), squares.take(np.array([3, 1]))[1].numpy().tolist()
    (5, [9.0, 1.0])
    """
    refuse_readers(readers, of="kf.data.records")
    refuse_unnumbered(records, of="kf.data.records()")
    if not len(records):
        raise UsageError("kf.data.records() was given no record")
    if not callable(load):
        raise UsageError(f"kf.data.records(load={load!r}): must be a function of a record")
    found = LoadedRecords(records, load, int(readers))
    _ = found.sample_spec  # raises an error of load here, before the loop
    return found


class LoadedRecords(Records, IndexedSamples):
    """The samples loaded from records; see `records`."""


# ---- items that TensorFlow maps --------------------------------------------------------------------------------------


def mapped(items: Any, function: Callable[..., Any], *, readers: int = 4) -> MappedItems:
    """The samples of ``tf.data.Dataset.from_tensor_slices(items).map(function)``, by index.

    The samples serve ``training.batches`` and Keras' ``fit``, and are accessed in the job's shuffled order. So a peer
    reads and computes only the samples that it trains on, no shuffle buffer is needed, and a joining peer begins at
    once. Leave ``shuffle``, ``batch`` and ``repeat`` to the loop.

    Args:
        items: A nest of arrays with one entry per sample, such as the names of files and their classes; or a whole
            number n, for the numbers 0 to n - 1, as in ``Dataset.range``.
        function: Computes a sample from one item by TensorFlow ops, as in ``dataset.map``; the parts of a tuple are
            passed as separate arguments. The function is traced once, and returns a nest of tensors of fixed shapes.
            For ``fit`` it returns ``x``, ``(x, y)`` or ``(x, y, sample_weight)``. It may change samples at random.
        readers: The number of items of a batch computed in parallel. The result does not depend on this number.

    Returns:
        The samples. ``dataset(batch_size)`` returns them as a ``tf.data.Dataset``, for ``evaluate``.

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
