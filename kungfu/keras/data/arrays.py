"""Arrays under ``fit``: samples by their index, in the job's order; each peer takes the rows of its slice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.keras.data.fit_data import FitData, class_weights
from kungfu.keras.data.indexed import of_source
from kungfu.training.data.checksums import order_checksum
from kungfu.training.data.sample_source import Arrays

_INSTEAD = (
    "give arrays (NumPy, tensors, pandas) and batch_size, a tf.data.Dataset, a PyDataset or a generator to fit; or "
    "write the loop with kf.attach() and training.batches(), which takes records and functions of indices: docs/data.md"
)


def of_arrays(given: Mapping[str, Any], *, seed: int) -> FitData:
    """``batch_size`` samples of the arrays are a step of the job.

    Args:
        given: The arguments of ``fit``.
        seed: Under ``shuffle=True`` each epoch has its own order, which follows from it.

    Raises:
        UsageError: These are no arrays with one entry a sample, or the arguments do not go together.
    """
    x, y, sample_weight = given["x"], given["y"], given["sample_weight"]
    validation = None
    _refuse_others(x)
    _refuse_leaves((x, y, sample_weight))
    if given["validation_data"] is None and given["validation_split"]:
        (x, y, sample_weight), validation = _split((x, y, sample_weight), given["validation_split"])
    weights = sample_weight  # those of classes peers compare by the class, see `FitCall.told`
    if given["class_weight"] is not None:
        weights = class_weights(y, sample_weight, given["class_weight"])
    arrays = tf.nest.map_structure(_standard, keras.utils.pack_x_y_sample_weight(x, y, weights))
    source = Arrays(arrays, _samples(arrays))
    found = of_source(source, arrays, given, seed=seed)
    # Inputs may have been changed at random, by each peer in its own way: a target says which sample it is.
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
