"""``fit`` of plain Keras on the slices of a job: what the job has to come to, whatever happened to its peers.

Nothing of kungfu trains here. A step runs the model's own ``train_step`` once for each slice, from the state before the
step, and catches what the optimizer is given; then it runs them once more, with the mean of those gradients in their
place. A ``train_step`` with several optimizers is caught once for each of its applications, so the second one sees the
weights that the first one has updated. What layers keep of the data (BatchNorm) each peer has for itself, until the job
has averaged it.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.framework_internals import build_symbolically, layer_statistics

Record = dict[str, Any]


class _CaughtError(Exception):
    """The run of a slice has come to an application whose mean is not known yet."""


class PlainTwin:
    """Stands for ``kf.keras.attach`` in a script; the peers of the job have left what they trained on in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._phase = folder, -1
        self.found: dict[str, Any] = {}

    def attach(self, model: Any, **_: Any) -> None:
        """The next ``fit`` of the model is one on the slices of this phase of the job."""
        self._phase, self.found["model"] = self._phase + 1, model
        own, phase = type(model).fit, self._phase

        def fit(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(own).bind(model, *args, **kwargs)
            bound.apply_defaults()
            return _PlainFit(model, recorded(self._folder, phase), averaged(self._folder, phase)).run(bound.arguments)

        model.fit = fit


def recorded(folder: Path, phase: int) -> dict[int, list[Record]]:
    """What was recorded of each step, in the order of views and ranks."""
    found = {}
    for step in sorted((folder / "slices").glob(f"{phase}-*")):
        paths = sorted(step.glob("*.pickle"))
        found[int(step.name.partition("-")[2])] = [pickle.loads(path.read_bytes()) for path in paths]
    return found


def averaged(folder: Path, phase: int) -> set[int]:
    """The steps after which the job averaged what layers keep of the data."""
    return {int(path.name.partition("-")[2]) for path in (folder / "averages").glob(f"{phase}-?????")}


def done(records: Sequence[Record]) -> list[Record]:
    """The slices of the step that was done: all peers of one view."""
    last = [one for one in records if one["done"]]
    assert [one["rank"] for one in last] == list(range(last[0]["size"])), "each slice of the step, and no other"
    return last


class _PlainFit:
    """One ``fit``."""

    def __init__(self, model: Any, steps: dict[int, list[Record]], averages: set[int]) -> None:
        self._model, self._steps, self._averages = model, steps, averages
        optimizers = {id(one): one for one in vars(model).values() if isinstance(one, keras.optimizers.Optimizer)}
        self._optimizers = list(optimizers.values())
        self._build(steps[min(steps)][0]["batch"])
        self._metrics = _unique(model.metrics_variables)
        statistics = {id(one) for one in layer_statistics(model)}
        self._statistics = [one for one in model.weights if id(one) in statistics and "float" in one.dtype]
        apart = {id(one) for one in (*self._metrics, *self._statistics)}
        slots = [slot for one in self._optimizers for slot in one.variables]
        self._shared = [one for one in _unique([*model.variables, *slots]) if id(one) not in apart]
        self._mean = _values(self._statistics)  # of what layers keep, when it was last averaged
        self._of_peers: dict[int, list[np.ndarray]] = {}

    def _build(self, batch: Any) -> None:
        """Makes all variables, with the values that they begin with."""
        model = self._model
        if type(model).train_step is keras.Model.train_step:
            build_symbolically(model, tf.nest.map_structure(_symbolic, batch))
        before = _unique(model.variables)
        values = _values(before)
        with _replaced(self._optimizers, _builds):
            model.train_step(tf.nest.map_structure(tf.convert_to_tensor, batch))
        _assign(before, values)
        model.reset_metrics()

    def run(self, given: dict[str, Any]) -> Any:
        """Trains, with the callbacks and the validation that ``fit`` was given."""
        model = self._model
        callbacks = keras.callbacks.CallbackList(
            given["callbacks"], add_history=True, model=model, epochs=given["epochs"], steps=None, verbose=0
        )
        model.stop_training = False
        callbacks.on_train_begin()
        for epoch in range(given["initial_epoch"], given["epochs"]):
            numbers = [number for number, records in self._steps.items() if done(records)[0]["epoch"] == epoch]
            if not numbers:
                break  # the job was stopped
            model.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            for batch, number in enumerate(numbers):
                callbacks.on_train_batch_begin(batch)
                self._step(number)
                callbacks.on_train_batch_end(batch, model.get_metrics_result())
            callbacks.on_epoch_end(epoch, self._logs(given, last=numbers[-1]))
        for optimizer in self._optimizers:
            if optimizer is model.optimizer:
                optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end()
        return model.history

    def _logs(self, given: dict[str, Any], *, last: int) -> dict[str, Any]:
        assert last in self._averages, "statistics are the job's at the end of an epoch"
        _assign(self._statistics, self._mean)
        logs = {name: float(value) for name, value in self._model.get_metrics_result().items()}
        if given["validation_data"] is None:
            return logs
        x, y, weight = keras.utils.unpack_x_y_sample_weight(given["validation_data"])
        size = given["validation_batch_size"] or given["batch_size"]
        found = self._model.evaluate(x, y, sample_weight=weight, batch_size=size, return_dict=True, verbose=0)
        return {**logs, **{f"val_{name}": value for name, value in found.items()}}

    def _step(self, number: int) -> None:
        records = self._steps[number]
        slices = done(records)
        # Where peers were lost the others have moved their statistics, and nothing else, and did the step again.
        metrics = _values(self._metrics)
        for one in records:
            if not one["done"]:
                self._run(one, [], _values(self._shared), metrics)
                _assign(self._metrics, metrics)
        if found := [one for one in slices if not one["empty"]]:
            self._update(self._put_together(found))
        if number in self._averages:
            every = [self._of_peers.get(one["peer"], self._mean) for one in slices]
            self._mean = [np.mean(values, axis=0) for values in zip(*every, strict=True)]
            self._of_peers = {}

    def _put_together(self, slices: Sequence[Record]) -> Sequence[Record]:
        """The whole batch where no layer sees slices: a loss may be divided by something else than samples."""
        if self._statistics or type(self._model).train_step is not keras.Model.train_step:
            return slices
        whole = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *(one["batch"] for one in slices))
        return [{**slices[0], "batch": whole}]

    def _update(self, slices: Sequence[Record]) -> None:
        """One step of all slices: the applications of its optimizers one after the other."""
        shared, before = _values(self._shared), _values(self._metrics)
        kept, means = dict(self._of_peers), list[list[Any]]()
        samples = [len(tf.nest.flatten(one["batch"])[0]) for one in slices]
        while True:
            self._of_peers, metrics = dict(kept), before
            caught = []
            for one in slices:
                gradients = self._run(one, means, shared, metrics)
                metrics = _values(self._metrics)
                if gradients is not None:
                    caught.append(gradients)
            if not caught:
                return
            means.append([_mean(of_one, samples) for of_one in zip(*caught, strict=True)])

    def _run(self, one: Record, means: Sequence[Any], shared: Sequence[Any], metrics: Sequence[Any]) -> Any | None:
        """Runs ``train_step`` on a slice. Gives the gradients of the application after ``means``, if there is one."""
        _assign(self._shared, shared)
        _assign(self._metrics, metrics)
        _assign(self._statistics, self._of_peers.get(one["peer"], self._mean))
        caught: list[Any] = []
        with _caught(self._optimizers, means, caught):
            self._model.train_step(tf.nest.map_structure(tf.convert_to_tensor, one["batch"]))
        self._of_peers[one["peer"]] = _values(self._statistics)
        return caught or None


@contextmanager
def _replaced(optimizers: Sequence[Any], apply: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Each optimizer applies gradients by what ``apply`` gives for it."""
    replaced = [apply(optimizer) for optimizer in optimizers]
    for optimizer, one in zip(optimizers, replaced, strict=True):
        vars(optimizer)["apply"] = one
    try:
        yield
    finally:
        for optimizer in optimizers:
            del vars(optimizer)["apply"]


def _builds(optimizer: Any) -> Callable[..., Any]:
    """Makes its slots, and applies nothing."""

    def apply(gradients: Any, trainable_variables: Any = None) -> None:
        if not optimizer.built:
            optimizer.build(trainable_variables)

    return apply


@contextmanager
def _caught(optimizers: Sequence[Any], means: Sequence[Any], caught: list[Any]) -> Iterator[None]:
    """Applications are given ``means``, one after the other; the one after those ends the run, and is caught."""
    left = iter(means)

    def of(optimizer: Any) -> Callable[..., Any]:
        own = optimizer.apply

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            if (mean := next(left, None)) is None:
                caught[:] = [None if one is None else tf.convert_to_tensor(one) for one in gradients]
                raise _CaughtError
            own(mean, trainable_variables)

        return apply

    with suppress(_CaughtError), _replaced(optimizers, of):
        yield


def _mean(gradients: Sequence[Any], samples: Sequence[int]) -> Any:
    """Of one variable, over the slices: each counts by its samples."""
    if all(one is None for one in gradients):
        return None
    total = sum(samples)
    return sum(one * (count / total) for one, count in zip(gradients, samples, strict=True))


def _symbolic(array: np.ndarray) -> Any:
    return keras.KerasTensor((None, *array.shape[1:]), dtype=array.dtype.name)


def _unique(variables: Sequence[Any]) -> list[Any]:
    return list({id(one): one for one in variables}.values())


def _values(variables: Sequence[Any]) -> list[np.ndarray]:
    return [np.array(one.numpy()) for one in variables]


def _assign(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
