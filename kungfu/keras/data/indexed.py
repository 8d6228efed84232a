"""Samples by index under ``fit``: the rows of arrays, and the samples of files (``kf.data``)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import UsageError
from kungfu.keras.data.fit_data import BatchFormat, FitData, class_weights, epochs_of, symbolic
from kungfu.runtime.api import shuffled
from kungfu.training.data import BatchPlan
from kungfu.training.data.checksums import order_checksum
from kungfu.training.data.partition_sampler import SequentialSource
from kungfu.training.data.sample_source import Arrays, SampleSource
from kungfu.training.data.sampler import PassSampler, Sampler, SerialSampler

_INSTEAD = (
    "give arrays (NumPy, tensors, pandas) and batch_size, a tf.data.Dataset, a PyDataset or a generator to fit; or "
    "write the loop with kf.attach() and training.batches(), which takes records and functions of indices: docs/data.md"
)


def of_indexed(source: SampleSource, given: Mapping[str, Any], *, seed: int) -> FitData:
    """The data of a ``kf.data`` source: a step trains on ``batch_size`` samples; the first shows their spec."""
    batch = BatchFormat(type(source).__name__).standard(source.take(np.zeros(1, np.int64)))
    return of_source(source, batch, given, seed=seed)


def of_source(source: SampleSource, batch: Any, given: Mapping[str, Any], *, seed: int) -> FitData:
    """The data of a source of samples by index.

    Args:
        source: The source of the samples.
        batch: Arrays in the structure of a batch.
        given: The arguments of ``fit``.
        seed: The seed of the order.
    """
    samples, order = source.samples, seed if given["shuffle"] else None
    batch_size = _batch_size(given, samples)
    make_sampler = getattr(source, "make_sampler", None)  # of a source with a fixed reading order
    if make_sampler is None:
        sampler = _sampler(samples, order, batch_size=batch_size, steps=given["steps_per_epoch"])
    elif given["steps_per_epoch"]:
        raise UsageError("model.fit(steps_per_epoch=...) with kf.data.partitions: an epoch is a pass over all of them")
    else:
        sampler = make_sampler(order, "keep")
    plan = BatchPlan(source, sampler, batch_size, epochs_of(given))
    return FitData(plan, {"seed": -1 if order is None else order}, tf.nest.map_structure(symbolic, batch))


def _sampler(samples: int, seed: int | None, *, batch_size: int, steps: int | None) -> Sampler:
    whole = -(-samples // batch_size)
    if not steps or steps == whole:
        return SerialSampler(samples, seed)
    if steps > whole:  # as in Keras
        print(
            f"kungfu: model.fit(steps_per_epoch={steps}): {samples} samples in batches of {batch_size} are {whole} "
            "steps, and an epoch ends with them",
            file=sys.stderr,
        )
        return SerialSampler(samples, seed)
    return PassSampler(steps * batch_size, samples, seed)


def _batch_size(given: Mapping[str, Any], samples: int) -> int:
    """The batch size of the job at its start; Keras' default if none is given."""
    steps, batch_size = given["steps_per_epoch"], given["batch_size"]
    if steps is not None and (not isinstance(steps, int | np.integer) or steps < 1):
        raise UsageError(f"model.fit(steps_per_epoch={steps!r}): must be an integer of at least 1")
    if not batch_size:
        batch_size = -(-samples // steps) if steps else 32
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise UsageError(f"model.fit(batch_size={batch_size!r}): must be an integer of at least 1")
    return min(int(batch_size), samples)


# ---- arrays ----------------------------------------------------------------------------------------------------------


def of_arrays(given: Mapping[str, Any], *, seed: int) -> FitData:
    """The data of arrays: a step of the job trains on ``batch_size`` samples.

    Args:
        given: The arguments of ``fit``.
        seed: Determines the order of each epoch under ``shuffle=True``.

    Raises:
        UsageError: The data are not arrays with one entry per sample, or the arguments contradict each other.
    """
    x, y, sample_weight = given["x"], given["y"], given["sample_weight"]
    validation = None
    _refuse_others(x)
    _refuse_leaves((x, y, sample_weight))
    if given["validation_data"] is None and given["validation_split"]:
        (x, y, sample_weight), validation = _split((x, y, sample_weight), given["validation_split"])
    weights = sample_weight  # class weights are compared separately, see `FitCall.described`
    if given["class_weight"] is not None:
        weights = class_weights(y, sample_weight, given["class_weight"])
    arrays = tf.nest.map_structure(_standard, keras.utils.pack_x_y_sample_weight(x, y, weights))
    source = Arrays(arrays, _samples(arrays))
    found = of_source(source, arrays, given, seed=seed)
    # Each peer may have changed the inputs at random: the targets identify the samples.
    described = {**found.described, "targets": order_checksum((x, y), y)}
    if sample_weight is not None:
        described["weights"] = order_checksum(sample_weight)
    return replace(found, described=described, validation=validation)


def _refuse_others(x: Any) -> None:
    if hasattr(x, "__next__") and not hasattr(x, "shape"):
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
    """The array in Keras' standard form: floats have the width of Keras' ``floatx``."""
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


def _split(data: tuple[Any, Any, Any], fraction: float) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Splits off the last fraction of the samples for validation, as Keras does."""
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


# ---- without a job ---------------------------------------------------------------------------------------------------


def arguments_alone(source: SampleSource, given: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
    """The arguments of ``fit`` for a program without a job: batches in the order that a job would use."""
    batch_size, samples = _batch_size(given, source.samples), source.samples
    drawn = seed if given["shuffle"] else None

    def order(epoch: int) -> NDArray[np.int64]:
        return shuffled(samples, seed=drawn, epoch=epoch)

    # Files that are read in sequence follow each other, as in a job of one peer.
    if isinstance(source, SequentialSource):
        order = source.make_sampler(drawn, "keep").order
    return {**given, "x": _Ordered(source, batch_size, order), "batch_size": None, "shuffle": False}


class _Ordered(keras.utils.PyDataset):
    """The batches of a source, in the job's order."""

    def __init__(self, source: SampleSource, batch_size: int, order: Callable[[int], NDArray[np.int64]]) -> None:
        super().__init__()
        self._source, self._batch_size, self._order_of, self._epoch = source, batch_size, order, -1

    def __len__(self) -> int:
        return -(-self._source.samples // self._batch_size)

    def __getitem__(self, index: int) -> Any:
        order = self._order_of(max(0, self._epoch))
        batch = self._source.take(order[index * self._batch_size : (index + 1) * self._batch_size])
        return batch if isinstance(batch, tuple | dict) else (batch,)

    def on_epoch_end(self) -> None:
        self._epoch += 1  # Keras' fit calls this first
