"""The data of ``fit``: the choice of the reader for each kind of data, and samples by index.

Samples by index are the rows of arrays, and the samples of files (``kf.data``).
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from types import GeneratorType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import UsageError
from kungfu.framework_internals import dataset_order
from kungfu.keras.data.py_dataset import of_py_dataset
from kungfu.keras.data.whole_batches import BatchFormat, class_weights, epochs_of, is_text, of_dataset, of_generator
from kungfu.runtime.api import shuffled
from kungfu.training.data import BatchPlan
from kungfu.training.data.checksums import has_rows, order_checksum, samples_checksum
from kungfu.training.data.partition_sampler import SequentialSource
from kungfu.training.data.sample_source import Arrays, SampleSource, is_source
from kungfu.training.data.sampler import PassSampler, Sampler, SerialSampler

_INSTEAD = (
    "give arrays (NumPy, tensors, pandas) and batch_size, a tf.data.Dataset, a PyDataset or a generator to fit; or "
    "write the loop with kf.attach() and training.batches(), which takes records and functions of indices: docs/data.md"
)


def bound_arguments(method: Callable[..., Any], model: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of a model's method by name, including Keras' defaults.

    If a subclass overrides the method, the values of ``*args`` and ``**kwargs`` count as arguments of Keras' method.
    """
    overridden, of_keras = inspect.signature(method), inspect.signature(getattr(keras.Model, method.__name__))
    defaults = {name: one.default for name, one in of_keras.parameters.items() if one.kind is not one.VAR_KEYWORD}
    bound = overridden.bind(model, *args, **kwargs)
    bound.apply_defaults()
    named = dict(bound.arguments)
    for name, parameter in overridden.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            named |= zip([*defaults][len(bound.args) - len(named[name]) :], named.pop(name), strict=False)
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(name)
    return {name: value for name, value in (defaults | named).items() if name != "self"}


def fit_data(given: Mapping[str, Any], *, seed: int) -> tuple[BatchPlan, Any, tuple[Any, Any, Any] | None]:
    """The training and validation data for the arguments of a call of ``fit``.

    Returns:
        The `BatchPlan`; a batch as ``keras.KerasTensor``, with an open first dimension; and ``x``, ``y`` and
        ``sample_weight`` for the validation, or ``None`` without a validation.

    Raises:
        UsageError: Peers cannot share data of this kind, or the arguments contradict each other.
    """
    x = given["x"]
    if isinstance(x, tf.data.Dataset):
        _refuse_beside(given, "a tf.data.Dataset", "let the Dataset give x, y, sample_weight")
        plan, batch = of_dataset(given)
    elif isinstance(x, keras.utils.PyDataset):
        _refuse_beside(given, "a PyDataset", "let its batches hold x, y, sample_weight")
        plan, batch = of_py_dataset(given, seed=seed)
    elif isinstance(x, GeneratorType):
        _refuse_beside(given, "a generator", "let it give x, y, sample_weight", "class_weight")
        plan, batch = of_generator(given)
    elif is_source(x):
        _refuse_beside(given, type(x).__name__, "let its parse= give x, y, sample_weight", "class_weight")
        # The first sample shows the structure of a batch.
        batch = BatchFormat(type(x).__name__).standard(x.take(np.zeros(1, np.int64)))
        plan = of_source(x, given, seed=seed)
    else:
        given = _split(given)
        plan, batch = of_arrays(given, seed=seed)
    symbolic, validation = tf.nest.map_structure(_symbolic, batch), None
    if given["validation_data"] is not None:
        validation, compared = _compared(keras.utils.unpack_x_y_sample_weight(given["validation_data"]))
        plan = replace(plan, described={**plan.described, "validation": compared})
    return plan, symbolic, validation


def _symbolic(array: Any) -> Any:
    return keras.KerasTensor((None, *array.shape[1:]), dtype="string" if is_text(array) else array.dtype.name)


def _refuse_beside(given: Mapping[str, Any], kind: str, instead: str, *names: str) -> None:
    """Refuses arguments that cannot be combined with this kind of data, as Keras does."""
    for name in ("y", "sample_weight", "validation_split", *names):
        # Keras' default is a split of 0.
        if given[name] is not None and not (name == "validation_split" and given[name] == 0.0):
            raise UsageError(f"model.fit({name}=...) with {kind}: {instead}")


def refuse_samples(data: Any, *, to: str) -> None:
    """Raises ``UsageError`` for samples of ``kf.data`` in a call or argument that accepts only Keras' kinds of data."""
    if is_source(data):
        raise UsageError(
            f"{to} was given {type(data).__name__} of kf.data, which only the training data of model.fit() can be: "
            "give its .dataset(batch_size), a tf.data.Dataset of the same samples"
        )


def refuse_other_batch(plan: BatchPlan, epoch: int, *, coordinators: int) -> None:
    """Raises ``UsageError`` if an epoch's first batch differs between this peer and the coordinator."""
    own = plan.first_batch_of(epoch) if coordinators >= 0 else -1
    if own not in (-1, coordinators):
        raise UsageError(
            f"the data of model.fit() differ between this peer and rank 0: epoch {epoch + 1} of this fit "
            "begins with another batch here. Each peer reads all of the data and takes its slice of each batch, so "
            "they have to come in the same order on all: call keras.utils.set_random_seed(...) at the top, draw "
            "from a generator of the data's own (np.random.default_rng(seed)) in on_epoch_end, put layers that "
            "change samples at random into the model and not into map(), or give arrays, which are shared by index"
        )


# ---- samples by index ------------------------------------------------------------------------------------------------


def of_source(source: SampleSource, given: Mapping[str, Any], *, seed: int) -> BatchPlan:
    """The `BatchPlan` for samples by index: a step of the job trains on ``batch_size`` samples."""
    samples, order = source.samples, seed if given["shuffle"] else None
    batch_size = _batch_size(given, samples)
    make_sampler = getattr(source, "make_sampler", None)  # of a source with a fixed reading order
    if make_sampler is None:
        sampler = _sampler(samples, order, batch_size=batch_size, steps=given["steps_per_epoch"])
    elif given["steps_per_epoch"]:
        raise UsageError("model.fit(steps_per_epoch=...) with kf.data.partitions: an epoch is a pass over all of them")
    else:
        sampler = make_sampler(order, "keep")
    described = {"seed": -1 if order is None else order}
    return BatchPlan(source, sampler, batch_size, epochs_of(given), described=described)


def _sampler(samples: int, seed: int | None, *, batch_size: int, steps: int | None) -> Sampler:
    whole = -(-samples // batch_size)
    if steps and steps > whole:  # as in Keras
        print(
            f"kungfu: model.fit(steps_per_epoch={steps}): {samples} samples in batches of {batch_size} are {whole} "
            "steps, and an epoch ends with them",
            file=sys.stderr,
        )
    is_pass = not steps or steps >= whole
    return SerialSampler(samples, seed) if is_pass else PassSampler((steps or 0) * batch_size, samples, seed)


def _batch_size(given: Mapping[str, Any], samples: int) -> int:
    """The job's batch size at the start; Keras' default if none is given."""
    steps, batch_size = given["steps_per_epoch"], given["batch_size"]
    if steps is not None and (not isinstance(steps, int | np.integer) or steps < 1):
        raise UsageError(f"model.fit(steps_per_epoch={steps!r}): must be an integer of at least 1")
    if not batch_size:
        batch_size = -(-samples // steps) if steps else 32
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise UsageError(f"model.fit(batch_size={batch_size!r}): must be an integer of at least 1")
    return min(int(batch_size), samples)


# ---- arrays ----------------------------------------------------------------------------------------------------------


def of_arrays(given: Mapping[str, Any], *, seed: int) -> tuple[BatchPlan, Any]:
    """The `BatchPlan` for arrays with one entry per sample, and the arrays in the structure of a batch."""
    x, y, sample_weight = given["x"], given["y"], given["sample_weight"]
    weights = sample_weight  # class weights are compared separately, see `FitRun.described`
    if given["class_weight"] is not None:
        weights = class_weights(y, sample_weight, given["class_weight"])
    arrays = tf.nest.map_structure(_standard, keras.utils.pack_x_y_sample_weight(x, y, weights))
    plan = of_source(Arrays(arrays, _samples(arrays)), given, seed=seed)
    # Each peer may have changed the inputs at random: the targets identify the samples.
    described = {**plan.described, "targets": order_checksum((x, y), y)}
    if sample_weight is not None:
        described["weights"] = order_checksum(sample_weight)
    return replace(plan, described=described), arrays


def _refuse_unlike_arrays(data: tuple[Any, Any, Any]) -> None:
    x = data[0]
    if hasattr(x, "__next__") and not hasattr(x, "shape"):
        raise UsageError(
            f"model.fit() was given {type(x).__name__} under kungfu-run, which peers do not share yet: {_INSTEAD}"
        )
    if x is None:
        raise UsageError("model.fit() was given no x")
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


def _split(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of ``fit`` for arrays; as in Keras, the last ``validation_split`` of the data is for validation.

    Raises ``UsageError`` if the data are not arrays, or one part would be empty."""
    data, fraction = (given["x"], given["y"], given["sample_weight"]), given["validation_split"]
    _refuse_unlike_arrays(data)
    if given["validation_data"] is not None or not fraction:
        return given
    if not 0 < fraction < 1:
        raise UsageError(f"model.fit(validation_split={fraction!r}): must lie between 0 and 1")
    arrays = tf.nest.map_structure(lambda one: None if one is None else _standard(one), data)
    samples = _samples([one for one in tf.nest.flatten(arrays) if one is not None])
    at = math.floor(samples * (1.0 - fraction))
    if at in (0, samples):
        raise UsageError(f"model.fit(validation_split={fraction!r}) leaves one part of {samples} samples empty")

    def part(rows: slice) -> Any:
        return tf.nest.map_structure(lambda one: None if one is None else one[rows], arrays)

    x, y, sample_weight = part(slice(None, at))
    return {**given, "x": x, "y": y, "sample_weight": sample_weight, "validation_data": part(slice(at, None))}


# ---- validation ------------------------------------------------------------------------------------------------------


def _compared(validation: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any, Any], int]:
    """The validation data, and their checksum; for data in batches, the checksum of the first batch.

    Undefined:
        -1 for data whose order may differ between peers: the first batch of a shuffled Dataset changes with each
        reading, the first batch of a PyDataset may change after each epoch, and a late joiner has read less often.
    """
    x, y, sample_weight = validation
    if isinstance(x, GeneratorType):
        first = next(x, None)
        return (x if first is None else chain([first], x), y, sample_weight), _batch_checksum(first)
    if isinstance(x, tf.data.Dataset):
        is_shuffled = dataset_order(x) != "as read"
        return validation, -1 if is_shuffled else _steady_checksum(lambda: next(iter(x), None))
    if isinstance(x, keras.utils.PyDataset):
        shuffles = type(x).on_epoch_end is not keras.utils.PyDataset.on_epoch_end
        return validation, -1 if shuffles or x.num_batches == 0 else _steady_checksum(lambda: x[0])
    is_known = _is_batch(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))
    return validation, order_checksum((x, y, sample_weight), (y, sample_weight)) if is_known else -1


def _steady_checksum(read: Callable[[], Any]) -> int:
    """The checksum of a batch, which is read twice; -1 if the checksums differ, since samples change at random."""
    first, again = _batch_checksum(read()), _batch_checksum(read())
    return first if first == again else -1


def _batch_checksum(batch: Any) -> int:
    return samples_checksum(batch) if _is_batch(batch) else -1


def _is_batch(given: Any) -> bool:
    """True if the data are arrays of equal length; Keras handles or refuses other data."""
    leaves = [one for one in tf.nest.flatten(given) if one is not None]
    return bool(leaves) and all(map(has_rows, leaves)) and len({len(one) for one in leaves}) == 1


# ---- without a job ---------------------------------------------------------------------------------------------------


def arguments_alone(source: SampleSource, given: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
    """The arguments of ``fit`` for a program without a job, with the batches in the same order as in a job."""
    batch_size, samples = _batch_size(given, source.samples), source.samples
    drawn = seed if given["shuffle"] else None

    def order(epoch: int) -> NDArray[np.int64]:
        return shuffled(samples, seed=drawn, epoch=epoch)

    # Files that are read in sequence follow each other, as in a job of one peer.
    if isinstance(source, SequentialSource):
        order = source.make_sampler(drawn, "keep").order
    return {**given, "x": _Ordered(source, batch_size, order), "batch_size": None, "shuffle": False}


class _Ordered(keras.utils.PyDataset):
    """The samples of a source as a PyDataset, in batches in the order in which a job would train on them."""

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
