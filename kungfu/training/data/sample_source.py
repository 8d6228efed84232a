"""Sources of samples: one small interface over arrays, records, and anything that can be read by index.

Peers share samples by index, in an order known to all peers. Data that can only be read from their start, or that
yield whole batches, have no such index: they are refused with an error that names alternatives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeGuard

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import UsageError
from kungfu.training.data.checksums import order_checksum

_INSTEAD = (
    "give arrays, or a sequence of records with load=function, or a function of indices with samples=N, which may give "
    "a tf.data.Dataset of these samples: see docs/data.md"
)
_BATCHED = ("PyDataset", "Sequence")


class SampleSource(Protocol):
    """Samples that are accessed by index, 0..samples-1."""

    @property
    def samples(self) -> int:
        """The number of samples."""
        ...

    def take(self, indices: NDArray[np.int64]) -> Any:
        """Returns a nest of tensors with one entry for each index, in order; there is at least one index.

        Called in the loader's thread."""
        ...


def is_source(data: Any) -> TypeGuard[SampleSource]:
    """True if an object's class derives from `SampleSource`; equal attribute names (as in pandas) are not enough."""
    return SampleSource in type(data).__mro__


@dataclass(frozen=True)
class Arrays:
    """A nest of arrays in memory (or mapped into memory) with one entry per sample."""

    arrays: Any
    samples: int

    def take(self, indices: NDArray[np.int64]) -> Any:
        """Returns, from every array, the rows with these indices."""
        return tf.nest.map_structure(lambda array: rows(array, indices), self.arrays)

    def order_checksum(self) -> int:
        """A checksum that is equal on peers with the same samples in the same order.

        Of ``(x, y)`` only the targets are used, since each peer may have changed the inputs. If the targets do not
        identify the samples, all arrays are used.
        """
        has_targets = isinstance(self.arrays, list | tuple) and len(self.arrays) > 1
        return order_checksum(self.arrays, self.arrays[1:] if has_targets else None)


@dataclass(frozen=True)
class Records:
    """A sequence with one record per sample, such as a file name, each converted to a nest of arrays by ``load``.

    Args:
        records: The sequence, whose items ``load`` converts.
        readers: The number of threads that call ``load`` at once.
    """

    records: Any
    load: Callable[[Any], Any]
    readers: int = 1

    @property
    def samples(self) -> int:
        return len(self.records)

    def take(self, indices: NDArray[np.int64]) -> Any:
        """Returns these records, loaded and stacked in order; if any cannot be loaded, raises the first error."""
        if (readers := min(self.readers, len(indices))) == 1:
            return stacked([self._sample(index) for index in indices])
        with ThreadPoolExecutor(readers, "kungfu-records") as pool:
            return stacked(list(pool.map(self._sample, indices)))

    def _sample(self, index: np.int64) -> Any:
        return self.load(self.records[int(index)])


@dataclass(frozen=True)
class ByIndex:
    """A function that returns the samples with given indices, as tensors or as a ``tf.data.Dataset``."""

    function: Callable[[NDArray[np.int64]], Any]
    samples: int

    def take(self, indices: NDArray[np.int64]) -> Any:
        """Returns the function's samples for these indices, and checks their number."""
        given = self.function(indices)
        if isinstance(given, tf.data.Dataset):
            # Requests one sample too many, to detect surplus samples.
            given = given.batch(len(indices) + 1).take(1).get_single_element()
        batch = tf.nest.map_structure(tf.convert_to_tensor, given)
        counts = [leaf.shape[0] if leaf.shape.rank else None for leaf in tf.nest.flatten(batch)]
        if not counts or set(counts) != {len(indices)}:
            raise UsageError(
                f"the function given to training.batches() gave {counts} entries for {len(indices)} indices: give one "
                "entry in the first dimension for each index, or a tf.data.Dataset with one element for each"
            )
        return batch


def as_source(data: Any, *, load: Callable[[Any], Any] | None, samples: int | None, readers: int = 1) -> SampleSource:
    """The source for ``data``; raises ``UsageError`` for data of no supported kind."""
    refuse_readers(readers, of="training.batches")
    if readers > 1 and (is_source(data) or (load is None and not _is_records(data))):
        raise UsageError(
            f"training.batches(readers={readers}): only for records, which are loaded one by one; kf.data's functions "
            "take it themselves"
        )
    if is_source(data):
        _refuse_samples(samples)
        if load is not None:
            raise UsageError(f"training.batches(load=...) was given {type(data).__name__}, which makes samples itself")
        return data
    refuse_unindexed(data)
    # Records: a sequence class of the user, or any sequence together with ``load``.
    if load is not None or _is_records(data):
        _refuse_samples(samples)
        refuse_unnumbered(data, of="training.batches(load=...)")
        return Records(data, load or (lambda record: record), int(readers))
    # A function of indices, the only source whose length is unknown.
    if callable(data):
        if not isinstance(samples, int | np.integer) or samples < 1:
            raise UsageError(
                f"training.batches(samples={samples!r}): a function of indices does not say how many samples there "
                "are; give their number, at least 1"
            )
        return ByIndex(data, int(samples))
    # Any other data are a nest of arrays.
    _refuse_samples(samples)
    return _arrays(data)


def _arrays(data: Any) -> Arrays:
    given = tf.nest.flatten(data)
    for leaf in given:
        refuse_unindexed(leaf)
        refuse_leaf(leaf)
    leaves = [np.asarray(leaf) for leaf in given]
    refuse_arrays(leaves)
    return Arrays(tf.nest.pack_sequence_as(data, leaves), len(leaves[0]))


def _refuse_samples(samples: int | None) -> None:
    if samples is not None:
        raise UsageError(
            f"training.batches(samples={samples!r}): only for a function of indices; other data has a length of its own"
        )


def _is_records(data: Any) -> bool:
    """True for a sequence of a user's class; lists, tuples and mappings are nests of arrays, as in TensorFlow."""
    array = hasattr(data, "__array__") or hasattr(data, "shape")
    has_items = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return has_items and not array and not isinstance(data, list | tuple | Mapping | str | bytes)


def stacked(rows: list[Any]) -> Any:
    """Stacks samples, each a nest of arrays, into one nest of tensors."""
    columns = zip(*(tf.nest.flatten(row) for row in rows), strict=True)
    return tf.nest.pack_sequence_as(rows[0], [_column(list(column)) for column in columns])


def _column(values: list[Any]) -> Any:
    tensors = [tf.convert_to_tensor(value) for value in values]
    kinds = {(tuple(tensor.shape), tensor.dtype.name) for tensor in tensors}
    if len(kinds) > 1:
        raise UsageError(
            f"records of one batch became arrays of different shapes or types, {sorted(kinds)[0]} and "
            f"{sorted(kinds)[-1]}: let load= pad or cut them to one"
        )
    return tf.stack(tensors)


# The alignment that TensorFlow's vector code expects, and that its allocator provides.
_ALIGNED_TO_BYTES = 64
_WORTH_IT_BYTES = 1 << 16


def rows(array: NDArray[Any], indices: NDArray[np.int64]) -> Any:
    """Copies ``array[indices]`` into a new tensor.

    Args:
        array: An array with one entry per sample.
        indices: Indices within the array, not negative.

    Cost:
        One copy of the rows if TensorFlow can share the NumPy array into which they are gathered; otherwise two copies,
        the second one under Python's lock.
    """
    shape = (len(indices), *array.shape[1:])
    if not _shareable(array) or int(np.prod(shape)) * array.itemsize < _WORTH_IT_BYTES:
        return tf.convert_to_tensor(array[indices])
    gathered = _aligned(shape, array.dtype)
    np.take(array, indices, axis=0, out=gathered, mode="clip")  # mode "raise" would gather into a buffer and copy
    return tf.experimental.dlpack.from_dlpack(gathered.__dlpack__())


def _shareable(array: NDArray[Any]) -> bool:
    """True if TensorFlow can share the array's memory: contiguous numbers in native byte order, and no accelerator."""
    plain = array.dtype.kind in "biuf" and array.dtype.isnative and array.itemsize <= 8
    return plain and array.flags.c_contiguous and array.flags.aligned and not _has_accelerator()


@cache
def _has_accelerator() -> bool:
    """True if an accelerator exists; the loading thread then copies batches to the accelerator's memory."""
    return bool(tf.config.list_logical_devices("GPU"))


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    count = int(np.prod(shape)) * dtype.itemsize
    room = np.empty(count + _ALIGNED_TO_BYTES, np.uint8)
    start = -room.ctypes.data % _ALIGNED_TO_BYTES
    return room[start : start + count].view(dtype).reshape(shape)


# ---- refusals --------------------------------------------------------------------------------------------------------


def refuse_unindexed(data: Any) -> None:
    """Raises ``UsageError`` for data whose samples cannot be requested by their index."""
    name = type(data).__name__
    if isinstance(data, tf.data.Dataset):
        raise UsageError(
            "training.batches() was given a tf.data.Dataset, which can only be walked from its start, so peers cannot "
            "share its samples by their index; give kf.data.mapped(items, read) for from_tensor_slices(items).map(read)"
            ", or a function of indices instead: training.batches(lambda indices: tf.data.Dataset.from_tensor_slices("
            "indices).map(read), samples=N, ...): see docs/data.md"
        )
    # Includes the classes of Keras 2.
    kinds = [kind for kind in type(data).__mro__ if kind.__module__.startswith(("keras", "tf_keras"))]
    if any(kind.__name__ in _BATCHED for kind in kinds):
        raise UsageError(
            f"training.batches() was given {name}, a keras PyDataset: its items are whole batches, and peers share "
            "samples; give a sequence with one sample an item, and batch_size to training.batches()"
        )
    if isinstance(data, Iterator):
        raise UsageError(
            f"training.batches() was given {name}, which can only be walked once and from its start, so peers cannot "
            f"share its samples by their index; {_INSTEAD}"
        )
    walks = isinstance(data, Iterable) and not hasattr(data, "__getitem__") and not hasattr(data, "__array__")
    if walks and not callable(data):
        raise UsageError(
            f"training.batches() was given {name}, which can be walked and has no items by number, so peers cannot "
            f"share its samples by their index; {_INSTEAD}"
        )


def refuse_readers(readers: Any, *, of: str) -> None:
    """Raises ``UsageError`` for an invalid number of readers; ``of`` is the name of the function that received it."""
    if not isinstance(readers, int | np.integer) or isinstance(readers, bool) or readers < 1:
        raise UsageError(f"{of}(readers={readers!r}): must be an integer of at least 1")


def refuse_unnumbered(records: Any, *, of: str) -> None:
    """Raises ``UsageError`` for records without a length or items; ``of`` names the function that received them."""
    if not hasattr(records, "__len__") or not hasattr(records, "__getitem__") or isinstance(records, Mapping):
        raise UsageError(
            f"{of} was given {type(records).__name__}: it takes a sequence of records, anything with a length whose "
            "items are numbered from 0"
        )


def refuse_leaf(leaf: Any) -> None:
    """Raises ``UsageError`` for a part of a nest that is not an array with one entry per sample."""
    if isinstance(leaf, tf.RaggedTensor):
        raise UsageError(
            "training.batches() was given a ragged tensor: the samples of a batch are stacked, and so of one shape; "
            "pad it with ragged.to_tensor(), or give records with a load= that pads or cuts each to one length"
        )
    if isinstance(leaf, tf.SparseTensor):
        raise UsageError("training.batches() was given a sparse tensor: make it dense with tf.sparse.to_dense()")
    if isinstance(leaf, str | bytes | os.PathLike):
        raise UsageError(
            f"training.batches() was given the text {str(leaf)[:60]!r}: it reads no files by itself; give a list of "
            "names with load=function, which makes arrays of one"
        )


def refuse_arrays(leaves: Sequence[np.ndarray[Any, Any]]) -> None:
    """Raises ``UsageError`` unless there are arrays of numbers or texts, all with the same number of entries."""
    if leaves and all(leaf.ndim for leaf in leaves) and len({len(leaf) for leaf in leaves}) == 1:
        # Python objects other than texts, such as rows of different lengths.
        others = (
            one for one in leaves if one.dtype == object and one.size and not isinstance(one.flat[0], str | bytes)
        )
        if (leaf := next(others, None)) is None:
            return
        raise UsageError(
            f"training.batches() was given an array of Python objects ({type(leaf.flat[0]).__name__}), as rows of "
            "different lengths make one: the samples of a batch are stacked, and so of one shape; pad them, or give "
            "records with a load= that does"
        )
    single = sum(not leaf.ndim for leaf in leaves)
    if single and single == len(leaves):
        raise UsageError(
            f"training.batches() was given {single} single value{'s' if single > 1 else ''} and no array: lists and "
            "tuples are nests of arrays, as everywhere in TensorFlow; make an array of them with np.asarray(values), "
            "and where they are of different lengths pad them, or give records with load=function"
        )
    lengths = ["none" if not leaf.ndim else str(len(leaf)) for leaf in leaves]
    shown = ", ".join([*lengths[:5], *["..."][: len(lengths) > 5]])
    raise UsageError(
        "training.batches() takes arrays with one entry a sample in their first dimension, all as long; got "
        f"{len(leaves)} arrays of lengths [{shown}]; for records or names of files say what makes arrays of "
        "one: load=function"
    )
