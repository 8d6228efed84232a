"""The data of ``fit`` as samples that peers share: arrays by index, in the job's order; a Dataset as it comes.

``batch_size``, or the batch of a Dataset, is that of the whole job; a step takes the next samples of the epoch, and
each peer its slice of them, as with ``training.batches``.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.data import BatchPlan
from kungfu.training.data.sample_source import Arrays
from kungfu.training.data.sampler import SerialSampler
from kungfu.training.data.stream import Stream, StreamSampler

__all__ = ["FitData", "fit_data"]

_INSTEAD = (
    "give arrays (NumPy, tensors, pandas) and batch_size, or a tf.data.Dataset, to fit; or write the loop with "
    "kf.attach() and training.batches(), which takes records and functions of indices (docs/data.md)"
)


@dataclass(frozen=True)
class FitData:
    """What ``fit`` walks, and what it validates on.

    Args:
        plan: The samples, their order, the batch of the job at its start, and the epochs that are left to do.
        seed: That of the order; -1 where samples come as arrays have them, and of a Dataset a checksum of its first
            batch: it has to be the same on all peers.
        validation: What ``evaluate`` is given, or ``None``.
        symbolic_batch: A batch in words: shapes with an open first dimension, and types.
    """

    plan: BatchPlan
    seed: int
    validation: tuple[Any, Any, Any] | None
    symbolic_batch: Any

    @property
    def steps(self) -> int:
        """Steps of an epoch as long as the batch stays."""
        return -(-self.plan.source.samples // self.plan.batch_size)


def fit_data(given: Mapping[str, Any], *, seed: int) -> FitData:
    """The data of a call of ``fit``.

    Args:
        given: Its arguments by name, all of them.
        seed: Each epoch has its own order, which follows from it.

    Raises:
        UsageError: Data of a kind that peers cannot share yet, or arguments that do not go together.
    """
    x, y, sample_weight = given["x"], given["y"], given["sample_weight"]
    validation = given["validation_data"]
    if validation is not None:
        validation = keras.utils.unpack_x_y_sample_weight(validation)
    epochs = max(0, given["epochs"] - given["initial_epoch"])
    if isinstance(x, tf.data.Dataset):
        return _of_dataset(given, validation, epochs)
    _refuse_others(x)
    _refuse_leaves((x, y, sample_weight))
    if validation is None and given["validation_split"]:
        (x, y, sample_weight), validation = _split((x, y, sample_weight), given["validation_split"])
    if given["class_weight"] is not None:
        sample_weight = _of_classes(y, sample_weight, given["class_weight"])
    arrays = tf.nest.map_structure(_standard, keras.utils.pack_x_y_sample_weight(x, y, sample_weight))
    samples = _samples(arrays)
    batch_size = _batch_size(given, samples)
    order = seed if given["shuffle"] else None
    plan = BatchPlan(Arrays(arrays, samples), SerialSampler(samples, order), batch_size, epochs)
    return FitData(plan, -1 if order is None else order, validation, tf.nest.map_structure(_symbolic, arrays))


def _symbolic(array: Any) -> Any:
    kind = "string" if array.dtype.kind in "USO" else array.dtype.name
    return keras.KerasTensor((None, *array.shape[1:]), dtype=kind)


# ---- Datasets --------------------------------------------------------------------------------------------------------


def _of_dataset(given: Mapping[str, Any], validation: Any, epochs: int) -> FitData:
    """A Dataset that every peer reads; its batches are those of the job at its start."""
    for name in ("y", "sample_weight", "validation_split"):
        if given[name] is not None and not (name == "validation_split" and given[name] == 0.0):
            raise UsageError(f"model.fit({name}=...) with a tf.data.Dataset: let the Dataset give x, y, sample_weight")
    dataset, steps, class_weight = given["x"], given["steps_per_epoch"], given["class_weight"]
    _refuse_elements(dataset)

    def read() -> Iterator[Any]:
        for element in dataset:
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tf.nest.map_structure(_array, element))
            if class_weight is not None:
                sample_weight = _of_classes(y, sample_weight, class_weight)
            yield keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    first, samples = _looked_through(read(), dataset, steps=steps, epochs=epochs)
    batch_size = _rows(first)
    what = "the tf.data.Dataset that model.fit() was given"
    source = Stream(read, samples=samples, is_endless=bool(steps), what=what)
    plan = BatchPlan(source, StreamSampler(samples), min(batch_size, samples), epochs)
    checksum = zlib.crc32(b"".join(np.ascontiguousarray(one).tobytes() for one in _numbers(first)))
    return FitData(plan, checksum, validation, tf.nest.map_structure(_symbolic, first))


def _array(tensor: Any) -> Any:
    return tensor.numpy()


def _rows(batch: Any) -> int:
    return len(tf.nest.flatten(batch)[0])


def _numbers(batch: Any) -> list[Any]:
    """Arrays whose bytes are their contents: texts stand in other places of memory on each peer."""
    return [np.asarray(one.tolist(), dtype="S") if one.dtype == object else one for one in tf.nest.flatten(batch)]


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
    """The first batch, and the samples of an epoch; every peer does this once, and so reads the same afterwards."""
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
        return first, steps * _rows(first)
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise UsageError("model.fit() was given a Dataset without an end: say steps_per_epoch")
    return first, _rows(first) + sum(map(_rows, batches))


def _refuse_others(x: Any) -> None:
    if isinstance(x, keras.utils.PyDataset) or (hasattr(x, "__next__") and not hasattr(x, "shape")):
        raise UsageError(
            f"model.fit() was given {type(x).__name__} under kungfu-run, which peers do not share yet: {_INSTEAD}"
        )
    if x is None:
        raise UsageError("model.fit() was given no x")


def _refuse_leaves(data: Any) -> None:
    for leaf in tf.nest.flatten(data):
        if leaf is None:
            continue
        if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
            raise UsageError(
                f"model.fit() was given a {type(leaf).__name__} under kungfu-run: the samples of a batch are stacked; "
                "make it dense with ragged.to_tensor() or tf.sparse.to_dense()"
            )
        if not hasattr(leaf, "shape") and not hasattr(leaf, "__array__"):
            raise UsageError(f"model.fit() was given {type(leaf).__name__} under kungfu-run: {_INSTEAD}")


def _standard(leaf: Any) -> Any:
    """As Keras makes them: floats of its own width."""
    array = np.asarray(leaf)
    if array.dtype.kind == "f" and array.dtype.name != keras.config.floatx():
        array = array.astype(keras.config.floatx())
    return array


def _samples(arrays: Any) -> int:
    leaves = tf.nest.flatten(arrays)
    lengths = [len(one) if one.ndim else 0 for one in leaves]
    if len(set(lengths)) != 1 or not lengths[0]:
        raise UsageError(
            f"model.fit() was given arrays of {lengths} samples: x, y and sample_weight have one entry a sample, at "
            "least one, and all as many"
        )
    return lengths[0]


def _batch_size(given: Mapping[str, Any], samples: int) -> int:
    """That of the job at its start; as Keras chooses it where none is given."""
    steps, batch_size = given["steps_per_epoch"], given["batch_size"]
    if not batch_size:
        batch_size = -(-samples // steps) if steps else 32
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise UsageError(f"model.fit(batch_size={batch_size!r}): must be an integer of at least 1")
    batch_size = min(int(batch_size), samples)
    whole = -(-samples // batch_size)
    if steps and steps != whole:
        raise UsageError(
            f"model.fit(steps_per_epoch={steps}) under kungfu-run with {samples} samples in batches of {batch_size}, "
            f"which make {whole} steps: an epoch of a job walks all of its data so far; leave steps_per_epoch out, and "
            "give more epochs or fewer"
        )
    return batch_size


def _split(data: tuple[Any, Any, Any], fraction: float) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """The last part of the samples is held out, as Keras does it."""
    if not 0 < fraction < 1:
        raise UsageError(f"model.fit(validation_split={fraction!r}): must lie between 0 and 1")
    arrays = tf.nest.map_structure(lambda one: None if one is None else _standard(one), data)
    samples = _samples([one for one in tf.nest.flatten(arrays) if one is not None])
    at = math.floor(samples * (1.0 - fraction))
    if at in (0, samples):
        raise UsageError(f"model.fit(validation_split={fraction!r}) leaves one part of {samples} samples empty")

    def part(rows: slice) -> Any:
        return tf.nest.map_structure(lambda one: None if one is None else one[rows], arrays)

    return part(slice(None, at)), part(slice(at, None))


def _of_classes(y: Any, sample_weight: Any, class_weight: Mapping[int, float]) -> Any:
    """One weight per sample, by its class: a number, a row with that number, or a one-hot row; as Keras does it."""
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
