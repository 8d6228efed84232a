"""Small models, and their ``fit`` as one peer of a job of one: the job's loop and step, without other processes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import keras
import numpy as np

import kungfu as kf

SAMPLES = 50


@contextmanager
def float64() -> Iterator[None]:
    """Keras computes in float64 meanwhile: what is compared differs by the order of additions only."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


def points(classes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and what is regressed on them; or their class."""
    x = np.random.default_rng(0).normal(size=(SAMPLES, 3))
    value = x @ np.array([1.0, -2.0, 0.5])
    return x, (np.digitize(value, [-1.0, 1.0])[:, None] if classes else np.tanh(value)[:, None])


class Batches(keras.utils.PyDataset):
    """Inputs and targets by index, so many samples a batch."""

    def __init__(self, x: Any, y: Any, size: int) -> None:
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self) -> int:
        return -(-len(self.x) // self.size)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.x[rows], self.y[rows]


def network(*layers: Any, outputs: int = 1, activation: str = "linear") -> Any:
    """A small network, the same each time."""
    keras.utils.set_random_seed(4)
    first, last = keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(outputs, activation=activation)
    return keras.Sequential([keras.Input((3,)), first, *layers, last])


def compiled(model: Any, loss: Any = "mse", **given: Any) -> Any:
    """The model, compiled with an optimizer whose state counts."""
    model.compile(given.pop("optimizer", None) or keras.optimizers.Adam(0.02), loss, **given)
    return model


def in_job(model: Any, *args: Any, policies: Sequence[Any] = (), **given: Any) -> Any:
    """The history of a compiled model's ``fit`` as a job of one peer does it."""
    kf.keras.attach(model, policies=policies)
    return model.fit.attached.in_job(*args, **{"verbose": 0, "shuffle": False, **given})


def arguments(**given: Any) -> dict[str, Any]:
    """Those of ``fit`` by name, with Keras' defaults."""
    signature = inspect.signature(keras.Model.fit)
    return {name: one.default for name, one in signature.parameters.items() if name != "self"} | given


def plainly(model: Any, *args: Any, op_by_op: bool = True, **given: Any) -> Any:
    """The same by Keras alone; ``op_by_op``, since tracing would take most of the time, if kungfu is not attached."""
    model.run_eagerly = op_by_op and not hasattr(model.fit, "attached")
    return model.fit(*args, **{"verbose": 0, "shuffle": False, **given})


@cache
def _fitted_as_arrays() -> Any:
    with float64():
        (x, y), plain = points(), compiled(network(), metrics=["mae"])
        plainly(plain, x, y, batch_size=16, epochs=2, validation_data=(x, y), validation_batch_size=32)
    return plain


def assert_fits_as_arrays(samples: Any) -> None:
    """``fit`` of `points` by index, in a job and alone, comes to what that of their arrays does, with validation."""
    plain = _fitted_as_arrays()
    with float64():
        mine, alone = (compiled(network(), metrics=["mae"]) for _ in range(2))
        in_job(mine, samples, batch_size=16, epochs=2, validation_data=samples.dataset(32))
        assert_same(mine, plain)
        kf.keras.attach(alone)
        alone.run_eagerly = True  # by Keras' own step
        alone.fit(samples, batch_size=16, epochs=2, verbose=0, shuffle=False, validation_data=samples.dataset(32))
        assert_same(alone, plain)


def assert_same(one: Any, other: Any, *, relative: float = 1e-8) -> None:
    """Two models, with the histories of their fits, are the same but for rounding."""
    assert one.history.history.keys() == other.history.history.keys()
    assert one.history.epoch == other.history.epoch
    for name, values in other.history.history.items():
        np.testing.assert_allclose(one.history.history[name], values, rtol=relative, atol=1e-12, err_msg=name)
    for mine, plain in zip(one.weights, other.weights, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(plain), rtol=relative, atol=1e-12, err_msg=plain.path)
