"""Refuses data that ``training.batches`` does not support, and suggests alternatives.

Peers share samples by index, in an order known to all of them. Data that can only be read from their start, or that
yield whole batches, have no such index.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError

_INSTEAD = (
    "give arrays, or a sequence of records with load=function, or a function of indices with samples=N, which may give "
    "a tf.data.Dataset of these samples: see docs/data.md"
)
_BATCHED = ("PyDataset", "Sequence")


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
    # Also of Keras 2.
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
    """Raises ``UsageError`` for an invalid number of readers, passed to the function called ``of``."""
    if not isinstance(readers, int | np.integer) or isinstance(readers, bool) or readers < 1:
        raise UsageError(f"{of}(readers={readers!r}): must be an integer of at least 1")


def refuse_unnumbered(records: Any, *, of: str) -> None:
    """Raises ``UsageError`` for records without numbers, passed to the function called ``of``."""
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
