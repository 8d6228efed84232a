"""A model of which every number is known beforehand: the gradient of its loss is the mean of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.runtime.api import Membership
from kungfu.training import Training
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.loop.attach import attach_built, build
from kungfu.training.loop.job_connection import JobConnection

FEATURES = 2


@dataclass(frozen=True)
class Run:
    """A run that nobody launched. ``step`` is the marked function, which returns the averaged gradient."""

    model: Any
    optimizer: Any
    training: Any
    step: Callable[..., Any]

    @property
    def weights(self) -> np.ndarray:
        """The two weights."""
        return np.asarray(self.model.weights[0]).ravel()

    def steps(self, count: int, *, samples: int = 2) -> None:
        """So many steps, each on the same samples."""
        for _ in range(count):
            self.step(points(samples))


def linear_model(*layers: Any) -> Any:
    """``w . x`` with ``w = 0`` behind the given layers."""
    output = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="head")
    return keras.Sequential([keras.Input((FEATURES,)), *layers, output], name="linear")


def nothing(training: Any, x: Any) -> None:
    """A part of a step that does nothing."""


def linear_run(
    *layers: Any,
    optimizer: Any = None,
    policies: Sequence[Any] = (),
    membership: Membership | None = None,
    before: Callable[[Any, Any], object] = nothing,
    after: Callable[[Any, Any], object] = nothing,
) -> Run:
    """Attaches such a model; plain gradient descent with a rate of 1 unless an optimizer is given.

    ``before(training, x)`` is a part of the step before it averages, ``after(training, gradients)`` at its end.
    """
    model = linear_model(*layers)
    optimizer = keras.optimizers.SGD(1.0) if optimizer is None else optimizer
    connection = JobConnection(None)
    if membership is not None:
        connection.membership = membership
    build(model, [optimizer])
    given = {"policies": policies, "seed": 0, "budget": None, "combine": {}}
    training = Training(attach_built(connection, model, [optimizer], **given))

    @training.step
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        local = tape.gradient(loss, model.trainable_variables)
        before(training, x)
        gradients = training.average(local, loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        after(training, gradients)
        return tf.reshape(gradients[-1], [-1])

    return Run(model, optimizer, training, step)


@contextmanager
def running(*, eagerly: bool) -> Iterator[None]:
    """Within it functions run op by op, or traced."""
    tf.config.run_functions_eagerly(eagerly)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def numbers_of(graph_state: GraphState) -> dict[tuple[str, str], float]:
    """The numbers of the last step, by group and name."""
    record = graph_state.metrics.step_record
    row = record.row(record.packed.numpy().tolist())
    return {(one.group, one.name): value for one, value in zip(record.columns, row, strict=False)}


def shown(training: Any, name: str) -> float:
    """The value of a policy's named signal in the last step."""
    record = training._run.graph_state.metrics.step_record
    return float(record.metrics(record.packed.numpy().tolist())[name])


def points(count: int) -> np.ndarray:
    """So many inputs that differ: [i, 1]."""
    return np.stack([np.arange(count), np.ones(count)], axis=1).astype(np.float32)
