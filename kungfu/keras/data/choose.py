"""Which kind of data ``fit`` was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import GeneratorType
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.keras.data.arrays import of_arrays
from kungfu.keras.data.dataset import of_dataset
from kungfu.keras.data.fit_data import FitData
from kungfu.keras.data.generator import of_generator
from kungfu.keras.data.indexed import of_indexed
from kungfu.keras.data.py_dataset import of_py_dataset
from kungfu.training.data.sample_source import is_source

__all__ = ["fit_data"]


def fit_data(given: Mapping[str, Any], *, seed: int) -> FitData:
    """The data of a call of ``fit``.

    Args:
        given: Its arguments by name, all of them.
        seed: Each epoch has its own order, which follows from it.

    Raises:
        UsageError: Data of a kind that peers cannot share, or arguments that do not go together.
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
    if given["validation_data"] is None:
        return made
    return replace(made, validation=keras.utils.unpack_x_y_sample_weight(given["validation_data"]))


def _refuse_beside(given: Mapping[str, Any], kind: str, instead: str, *names: str) -> None:
    """Arguments that Keras does not take beside such data either."""
    for name in ("y", "sample_weight", "validation_split", *names):
        # A split of nothing is what Keras gives where none is said.
        if given[name] is not None and not (name == "validation_split" and given[name] == 0.0):
            raise UsageError(f"model.fit({name}=...) with {kind}: {instead}")
