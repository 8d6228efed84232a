"""Chooses the reader for the kind of data given to ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import GeneratorType
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import dataset_order
from kungfu.keras.data.dataset import of_dataset, of_generator
from kungfu.keras.data.fit_data import FitData
from kungfu.keras.data.indexed import of_arrays, of_indexed
from kungfu.keras.data.py_dataset import of_py_dataset
from kungfu.training.data.checksums import has_rows, order_checksum, samples_checksum
from kungfu.training.data.sample_source import is_source


def fit_data(given: Mapping[str, Any], *, seed: int) -> FitData:
    """The data of a call of ``fit``.

    Args:
        given: All arguments of ``fit`` by name.
        seed: Determines the order of each epoch.

    Raises:
        UsageError: Peers cannot share this kind of data, or the arguments contradict each other.
    """
    x = given["x"]
    if isinstance(x, tf.data.Dataset):
        _refuse_beside(given, "a tf.data.Dataset", "let the Dataset give x, y, sample_weight")
        made = of_dataset(given)
    elif isinstance(x, keras.utils.PyDataset):
        _refuse_beside(given, "a PyDataset", "let its batches hold x, y, sample_weight")
        made = of_py_dataset(given, seed=seed)
    elif isinstance(x, GeneratorType):
        _refuse_beside(given, "a generator", "let it give x, y, sample_weight", "class_weight")
        made = of_generator(given)
    elif is_source(x):
        _refuse_beside(given, type(x).__name__, "let its parse= give x, y, sample_weight", "class_weight")
        made = of_indexed(x, given, seed=seed)
    else:
        made = of_arrays(given, seed=seed)
    if given["validation_data"] is not None:
        made = replace(made, validation=keras.utils.unpack_x_y_sample_weight(given["validation_data"]))
    if made.validation is None:
        return made
    validation, compared = _compared(made.validation)
    return replace(made, validation=validation, described={**made.described, "validation": compared})


def _compared(validation: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any, Any], int]:
    """The validation data, and their checksum; for data in batches, the checksum of the first batch.

    Undefined:
        -1 for data whose order may differ between peers. A shuffled Dataset gives another batch on each reading, a
        PyDataset possibly after each epoch, and a peer that joins in a later fit has read them less often.
    """
    x, y, sample_weight = validation
    if isinstance(x, GeneratorType):
        first = next(x, None)
        return (_put_back(first, x), y, sample_weight), _batch_checksum(first)
    if isinstance(x, tf.data.Dataset):
        is_shuffled = dataset_order(x) != "as read"
        return validation, -1 if is_shuffled else _steady_checksum(lambda: next(iter(x), None))
    if isinstance(x, keras.utils.PyDataset):
        shuffles = type(x).on_epoch_end is not keras.utils.PyDataset.on_epoch_end
        return validation, -1 if shuffles or x.num_batches == 0 else _steady_checksum(lambda: x[0])
    is_known = _is_batch(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))
    return validation, order_checksum((x, y, sample_weight), (y, sample_weight)) if is_known else -1


def _steady_checksum(read: Callable[[], Any]) -> int:
    """The checksum of a batch; -1 if it differs when the batch is read again, because samples change at random."""
    first, again = _batch_checksum(read()), _batch_checksum(read())
    return first if first == again else -1


def _batch_checksum(batch: Any) -> int:
    return samples_checksum(batch) if _is_batch(batch) else -1


def _is_batch(given: Any) -> bool:
    """True if the data are arrays of equal length; other data are left to Keras, or to its errors."""
    leaves = [one for one in tf.nest.flatten(given) if one is not None]
    return bool(leaves) and all(map(has_rows, leaves)) and len({len(one) for one in leaves}) == 1


def _put_back(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    if first is not None:
        yield first
    yield from others


def _refuse_beside(given: Mapping[str, Any], kind: str, instead: str, *names: str) -> None:
    """Refuses arguments that Keras does not accept with this kind of data either."""
    for name in ("y", "sample_weight", "validation_split", *names):
        # Keras' default is a split of 0.
        if given[name] is not None and not (name == "validation_split" and given[name] == 0.0):
            raise UsageError(f"model.fit({name}=...) with {kind}: {instead}")
