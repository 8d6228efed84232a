"""The model and data of ``keras_fit.py --losses 1``: losses that are divided by other things than samples.

Beside those there are metrics that do not add up, several steps per execution, and a last step of an epoch that has one
sample, so that the slices of all peers but one are empty.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.jobs.programs.keras_fit import FEATURES, RATE, SAMPLES, data
from tests.jobs.programs.program_parts import in_float64

UNEVEN, WORDS = 85, 5
PER_EXECUTION = 3


class Largest(keras.metrics.Metric):
    """The largest prediction."""

    start = -np.inf

    def __init__(self, name: str = "largest") -> None:
        super().__init__(name=name)
        self.largest = self.add_variable((), lambda shape, dtype: self.start, name="largest")

    def reset_state(self) -> None:
        self.largest.assign(self.start)

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(predicted)))

    def result(self) -> Any:
        return 1.0 * self.largest  # a number of its own: what Keras logs would follow the variable into validation


class Recent(Largest):
    """A moving mean of the targets."""

    start = 0.0

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.largest.assign(0.9 * self.largest + 0.1 * keras.ops.mean(y))


class Squares(keras.metrics.Metric):
    """The squares of the targets, summed, and their number: as a program that does not say so to kungfu."""

    def __init__(self, name: str = "squares") -> None:
        super().__init__(name=name)
        self.squares = self.add_variable((2,), "zeros", name="squares")
        self.count = self.add_variable((), "zeros", dtype="int32", name="count")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.squares.assign(self.squares + keras.ops.stack([keras.ops.sum(y**2), keras.ops.sum(y)]))
        self.count.assign(self.count + keras.ops.size(y))

    def result(self) -> Any:
        return self.squares[0] / keras.ops.cast(self.count, self.squares.dtype) + self.squares[1]


def changes(before: list[Any], after: list[Any]) -> list[Any]:
    """The sum of what the peers have added."""
    return [old + tf.reduce_sum(new - old, axis=0) for old, new in zip(before, after, strict=True)]


COMBINE = {"largest": "max", "recent": "mean", "squares": changes}


def data_of_losses() -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """As ``data``, with words, of which those that are 0 are masked, and with weights of samples."""
    draw = np.random.default_rng(1)
    x, y = data()
    words = draw.integers(0, 6, (SAMPLES, WORDS)) * (np.arange(WORDS) < draw.integers(0, WORDS + 1, (SAMPLES, 1)))
    spoken = draw.normal(size=(SAMPLES, WORDS, 1))
    targets = {**y, "weighted": y["value"] ** 2, "spoken": spoken, "kept": np.zeros((SAMPLES, 6))}
    weights = {name: np.ones(SAMPLES) for name in targets} | {"spoken": draw.uniform(0, 3, (SAMPLES, WORDS))}
    weights["weighted"], weights["value"] = draw.uniform(0, 3, SAMPLES), draw.uniform(0, 3, SAMPLES)
    x = np.concatenate([x, words], axis=1)[:UNEVEN]
    return x, *({name: one[:UNEVEN] for name, one in group.items()} for group in (targets, weights))


def build_losses() -> tuple[Any, Any]:
    """A network whose losses are divided by 1, by weights, by positions that are not masked; and regularized."""
    in_float64(1)
    given = keras.Input((FEATURES + 1 + WORDS,))
    dense = keras.layers.Dense(6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01))
    hidden = dense(given[:, :FEATURES])
    spoken = keras.layers.Embedding(6, 3, mask_zero=True)(keras.ops.cast(given[:, FEATURES + 1 :], "int32"))
    outputs = {
        "value": keras.layers.Dense(1, name="value")(hidden),
        "weighted": keras.layers.Dense(1, name="weighted")(hidden),
        "spoken": keras.layers.Dense(1, name="spoken")(spoken),
        "number": keras.layers.Identity(name="number")(given[:, FEATURES : FEATURES + 1]),
        "kept": keras.layers.BatchNormalization(center=False, scale=False, name="kept")(hidden),
    }
    model, counts = keras.Model(given, outputs), keras.metrics.MeanIoU(UNEVEN, name="seen")
    own = ["mae", Largest(), Recent("recent")]
    square = keras.losses.MeanSquaredError
    losses = {"value": square("sum"), "weighted": square("mean_with_sample_weight"), "spoken": square()}
    model.compile(
        keras.optimizers.SGD(RATE, momentum=0.9), {**losses, "number": None, "kept": None},
        loss_weights={"value": 0.05, "weighted": 1.0, "spoken": 0.5, "number": None, "kept": None},
        metrics={"value": own, "weighted": Squares(), "spoken": "mae", "number": counts},
        weighted_metrics={"weighted": ["mae"]}, steps_per_execution=PER_EXECUTION,
    )  # fmt: skip
    return model, counts
