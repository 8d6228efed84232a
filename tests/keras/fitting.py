"""Small models, and their ``fit`` as one peer of a job of one: the job's loop and step, without other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import keras
import numpy as np

import kungfu as kf
from kungfu.keras.attach_model import fit_in_job
from kungfu.keras.data.fit_data import bound_arguments, fit_data
from kungfu.runtime.settings import Deadlines, Limits, Settings
from kungfu.training.data import BatchPlan

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

    def __init__(self, x: Any, y: Any, size: int, **given: Any) -> None:
        super().__init__(**given)
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
    return fit_again(model, *args, **given)


def fit_again(model: Any, *args: Any, **given: Any) -> Any:
    """The history of an attached model's ``fit``, as `in_job`."""
    return fit_in_job(model.fit.attached, arguments(*args, **{"verbose": 0, "shuffle": False, **given}))


def arguments(*args: Any, **given: Any) -> dict[str, Any]:
    """Those of ``fit`` by name, with Keras' defaults."""
    return bound_arguments(keras.Model.fit, None, args, given)


def plan_of(*args: Any, seed: int = 0, **given: Any) -> BatchPlan:
    """The plan of the data of a call of ``fit``."""
    return fit_data(arguments(*args, **given), seed=seed)[0]


def plainly(model: Any, *args: Any, op_by_op: bool = True, **given: Any) -> Any:
    """The same by Keras alone; ``op_by_op``, since tracing would take most of the time, if kungfu is not attached."""
    model.run_eagerly = op_by_op and not hasattr(model.fit, "attached")
    return model.fit(*args, **{"verbose": 0, "shuffle": False, **given})


def run_under_kungfu(monkeypatch: Any, name: str = "job", *, most: int = 1, **given: Any) -> Settings:
    """Gives this process the environment of a peer of a job."""
    settings = Settings(name, 0, "127.0.0.1:1", "ab" * 32, "local", Limits(1, most), Deadlines(), **given)
    for variable, value in settings.to_environment().items():
        monkeypatch.setenv(variable, value)
    return settings


def assert_as_keras(make: Any, *args: Any, compile_with: Any = None, op_by_op: bool = True, **given: Any) -> Any:
    """The fit of the job and the plain one, of the same model, with a mean error unless it is compiled otherwise.

    Data that are given as a function are made anew for each fit. Gives the job's model.
    """
    compile_with = compile_with or (lambda: {"metrics": ["mae"]})

    def fresh() -> tuple[list[Any], dict[str, Any]]:
        made = {name: one() if isinstance(one, FunctionType) else one for name, one in given.items()}
        return [one() if isinstance(one, FunctionType) else one for one in args], made

    with float64():
        mine, plain = compiled(make(), **compile_with()), compiled(make(), **compile_with())
        for fit, model, more in ((in_job, mine, {}), (plainly, plain, {"op_by_op": op_by_op})):
            data, named = fresh()
            fit(model, *data, **named, **more)
        assert_same(mine, plain)
        assert mine.fit.attached.training.traces() == 1
    return mine


def assert_takes_points(samples: Any, *, dtype: str = "float64") -> None:
    """The samples are the `points`, in the order of the indices that are asked for."""
    x, y = (one.astype(dtype) for one in points())
    assert len(samples) == SAMPLES
    for indices in ([49, 0, 20, 21, 3], [7], np.random.default_rng(0).permutation(SAMPLES)):
        found = samples.take(np.array(indices))
        np.testing.assert_array_equal(found[0], x[indices])
        np.testing.assert_array_equal(found[1], y[indices])
    assert [len(one) for _, one in samples.dataset(16)] == [16, 16, 16, 2]


def assert_same(one: Any, other: Any, *, relative: float = 1e-8, absolute: float = 1e-12) -> None:
    """Two models, with the histories of their fits, are the same but for rounding."""
    assert one.history.history.keys() == other.history.history.keys()
    assert one.history.epoch == other.history.epoch
    for name, values in other.history.history.items():
        np.testing.assert_allclose(one.history.history[name], values, rtol=relative, atol=absolute, err_msg=name)
    assert_same_variables(one.weights, other.weights, relative=relative, absolute=absolute)


def assert_same_variables(
    some: Sequence[Any], others: Sequence[Any], *, relative: float = 0.0, absolute: float = 0.0
) -> None:
    """Variables, or their values, are the same but for rounding; to the last bit, unless a tolerance is given."""
    for one, other in zip(some, others, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=relative, atol=absolute)
