"""Whole batches under ``fit``: their format and plan, and the reading of a ``tf.data.Dataset`` or a generator.

``batch_size``, or the size of the given batches, is the batch size of the whole job. A step processes the next samples
of the epoch, and each peer trains on its slice of these samples, as with ``training.batches``. Every peer reads all
batches of a Dataset or a generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.data import BatchPlan
from kungfu.training.data.checksums import samples_checksum
from kungfu.training.data.stream import Stream, StreamSampler


def epochs_of(given: Mapping[str, Any]) -> int:
    """The number of epochs that a call of ``fit`` trains."""
    return max(0, given["epochs"] - given["initial_epoch"])


def stream_plan(source: Stream, first: Any, given: Mapping[str, Any], *, checksum: int, seed: int = -1) -> BatchPlan:
    """The `BatchPlan` for batches that are read in sequence, given the first batch and its checksum."""
    described, batch_size = {"seed": seed, "first_batch": checksum}, min(count_of(first), source.samples)
    return BatchPlan(source, StreamSampler(source.samples), batch_size, epochs_of(given), described=described)


class BatchFormat:
    """Converts the user's batches by `standard`; all batches must have the structure of the first batch.

    Args:
        what: The kind of data as named in errors, such as "a generator".
        class_weight: The class weights of ``fit``.
    """

    def __init__(self, what: str, class_weight: Mapping[int, float] | None = None) -> None:
        self._what, self._class_weight = what, class_weight
        self._first: Any = None

    def standard(self, batch: Any) -> Any:
        """A batch as ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays, or ``x`` alone.

        Raises ``UsageError`` if the batch has none of these structures, or another one than the first batch."""
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
        """A batch without the weights computed from ``class_weight``; peers compare ``class_weight`` separately."""
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


# ---- Datasets and generators -----------------------------------------------------------------------------------------


def of_dataset(given: Mapping[str, Any]) -> tuple[BatchPlan, Any]:
    """The `BatchPlan` and the first batch of a Dataset that ``fit`` received as ``x``.

    Cost: without ``steps_per_epoch`` the Dataset is read once before training, to count its samples."""
    dataset, steps = given["x"], given["steps_per_epoch"]
    _refuse_elements(dataset)
    batch_format = BatchFormat("a tf.data.Dataset", given["class_weight"])

    def batches() -> Iterator[Any]:
        return map(batch_format.standard, iter(dataset))

    def checksum(batch: Any) -> int:
        return samples_checksum(batch_format.as_given(batch))

    first, samples = _looked_through(batches(), dataset, steps=steps, epochs=epochs_of(given))
    source = Stream(
        lambda reading, at: (0, batches()),
        samples=samples,
        is_endless=bool(steps),
        what="the tf.data.Dataset that model.fit() was given",
        checksum=checksum,
    )
    return stream_plan(source, first, given, checksum=checksum(first)), first


def of_generator(given: Mapping[str, Any]) -> tuple[BatchPlan, Any]:
    """The `BatchPlan` and the first batch of a generator that ``fit`` received as ``x``.

    A generator can be read only once, so one reading continues over all epochs. An epoch has ``steps_per_epoch`` times
    the samples of the first batch, whatever the sizes of later batches.

    Cost:
        A joining peer first reads all batches that the others have read.

    Raises:
        UsageError: The steps of an epoch are not given, or the generator yields no batch.
    """
    generator, steps = given["x"], given["steps_per_epoch"]
    if not isinstance(steps, int) or steps < 1:
        raise UsageError(
            f"model.fit(steps_per_epoch={steps!r}) with a generator under kungfu-run: it does not tell how many "
            "batches an epoch has, and can be read once only; say steps_per_epoch, an integer of at least 1"
        )
    batch_format = BatchFormat("a generator")
    batches = map(batch_format.standard, generator)
    first = next(batches, None)
    if first is None:
        raise UsageError("model.fit() was given a generator that gives no batch")

    def read(reading: int, at: int) -> tuple[int, Iterator[Any]]:
        return 0, chain([first], batches)

    samples = steps * count_of(first)
    what = "the generator that model.fit() was given"
    source = Stream(read, samples=samples, is_endless=True, what=what, checksum=samples_checksum)
    return stream_plan(source, first, given, checksum=samples_checksum(first)), first


def _refuse_elements(dataset: Any) -> None:
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, tf.TensorSpec):
            raise UsageError(
                f"model.fit() was given a Dataset of {type(spec).__name__} under kungfu-run: the samples of a batch "
                "are stacked; make them dense in its map()"
            )
        if spec.shape.rank == 0:
            raise UsageError(
                "model.fit() was given a Dataset whose elements are single samples, or hold a single number: batch it "
                "with .batch(n), where n is the batch of the whole job"
            )


def _looked_through(batches: Iterator[Any], dataset: Any, *, steps: int | None, epochs: int) -> tuple[Any, int]:
    """Begins a reading of a Dataset, on each peer; returns the first batch, and the number of samples in an epoch."""
    cardinality = int(dataset.cardinality())
    first = next(batches, None)
    if first is None:
        raise UsageError("model.fit() was given a Dataset without elements")
    if steps:
        if 0 <= cardinality < steps * epochs:
            raise UsageError(
                f"model.fit(steps_per_epoch={steps}) with {epochs} epochs takes {steps * epochs} batches of a Dataset "
                f"that has {cardinality}: .repeat() it, or leave steps_per_epoch out"
            )
        return first, steps * count_of(first)
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise UsageError("model.fit() was given a Dataset without an end: say steps_per_epoch")
    return first, count_of(first) + sum(map(count_of, batches))
