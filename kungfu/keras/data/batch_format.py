"""The format of batches given to ``fit``, and the plan for data that give whole batches.

``batch_size``, or the size of the given batches, is the batch size of the whole job. A step processes the next samples
of the epoch, and each peer trains on its slice of these, as with ``training.batches``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.data import BatchPlan
from kungfu.training.data.stream import Stream, StreamSampler


def epochs_of(given: Mapping[str, Any]) -> int:
    """The number of epochs that a call of ``fit`` trains."""
    return max(0, given["epochs"] - given["initial_epoch"])


def stream_plan(source: Stream, first: Any, given: Mapping[str, Any], *, checksum: int, seed: int = -1) -> BatchPlan:
    """The plan for a stream of batches, given the first batch and its checksum."""
    described, batch_size = {"seed": seed, "first_batch": checksum}, min(count_of(first), source.samples)
    return BatchPlan(source, StreamSampler(source.samples), batch_size, epochs_of(given), described=described)


class BatchFormat:
    """Converts the user's batches into the structure of ``fit``; all must have the same structure as the first.

    Args:
        what: The kind of data for messages, such as "a generator".
        class_weight: The class weights of ``fit``.
    """

    def __init__(self, what: str, class_weight: Mapping[int, float] | None = None) -> None:
        self._what, self._class_weight = what, class_weight
        self._first: Any = None

    def standard(self, batch: Any) -> Any:
        """A batch as ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays, or ``x`` alone.

        Raises:
            UsageError: The batch has none of these structures, or differs from the first batch in structure.
        """
        if isinstance(batch, list | tuple) and not 1 <= len(batch) <= 3:
            raise self._refusal(f"which gave {len(batch)} things: a batch is x, (x, y) or (x, y, sample_weight)")
        x, y, sample_weight = tf.nest.map_structure(self._array, keras.utils.unpack_x_y_sample_weight(batch))
        if self._class_weight is not None:
            sample_weight = class_weights(y, sample_weight, self._class_weight)
        made = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
        lengths = {len(one) for one in tf.nest.flatten(made)}
        if len(lengths) != 1 or lengths == {0}:
            raise self._refusal(f"which gave arrays of {sorted(lengths)} samples in one batch: all have as many")
        self._hold_to_first(made)
        return made

    def as_given(self, batch: Any) -> Any:
        """A batch without the weights computed from ``class_weight``, which peers compare separately."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight if self._class_weight is None else None)

    def _array(self, leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor) or hasattr(leaf, "tocoo"):
            raise self._refusal(
                f"which gave a {type(leaf).__name__}: the samples of a batch are stacked; make it dense, with "
                "ragged.to_tensor(), tf.sparse.to_dense() or toarray()"
            )
        array = leaf.numpy() if tf.is_tensor(leaf) else np.asarray(leaf)
        if array.ndim == 0:
            raise self._refusal("which gave a single number where a batch has one entry a sample: give arrays")
        if array.dtype == object and array.size and not isinstance(array.flat[0], str | bytes):
            raise self._refusal(
                f"which gave an array of Python objects ({type(array.flat[0]).__name__}), as rows of different lengths "
                "make one: the samples of a batch are stacked; pad them"
            )
        return array

    def _hold_to_first(self, batch: Any) -> None:
        looks = tf.nest.map_structure(lambda one: (one.shape[1:], "text" if is_text(one) else one.dtype.name), batch)
        if self._first is None:
            self._first = looks
        if looks != self._first:
            raise self._refusal(
                f"which gave a batch of {looks} after one of {self._first} (shape of a sample, type): a step of a job "
                "takes samples across batches, so all are alike; pad them to one length"
            )

    def _refusal(self, why: str) -> UsageError:
        return UsageError(f"model.fit() was given {self._what} under kungfu-run, {why}")


def count_of(batch: Any) -> int:
    """The number of samples in a batch."""
    return len(tf.nest.flatten(batch)[0])


def is_text(array: Any) -> bool:
    """True for an array of strings."""
    return array.dtype.kind in "USO"


def class_weights(y: Any, sample_weight: Any, class_weight: Mapping[int, float]) -> Any:
    """One weight per sample, by its class (a number, a row of one number, or a one-hot row), as in Keras."""
    if sample_weight is not None:
        raise UsageError("model.fit() was given both class_weight and sample_weight: give one of them")
    if y is None or tf.nest.is_nested(y):
        raise UsageError("model.fit(class_weight=...) takes a y that is one array: it holds for one output")
    classes = np.asarray(y)
    if classes.ndim > 1:
        classes = np.squeeze(classes, axis=-1) if classes.shape[-1] == 1 else np.argmax(classes, axis=-1)
    if classes.ndim != 1:
        raise UsageError(f"model.fit(class_weight=...) was given a y of shape {np.shape(y)}: it takes a class a sample")
    whole = np.round(classes).astype(np.int64)
    return np.array([class_weight.get(int(one), 1.0) for one in whole], keras.config.floatx())
