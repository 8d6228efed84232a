"""Two peers with one sample each and gradients [3, 0] and [1, 0]: what policies see of that, written down by rank 0.

signals.py POLICY STEPS FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf

calls: list[list[float]] = []


def note(control, *values):
    calls.append([control.step, *values])


@kf.policy
def noise_scale(training):
    """The noise scale of the hand-computed case."""
    return kf.control.every(3).call(note, kf.monitor.gradient_noise_scale(training, decay=0.5))


@kf.policy
def two_gates(training):
    """Two collectives that only gated rules read; both gates are open in every sixth step."""
    local = (training.rank + 1) * training.mean_loss  # known only after the gradients: it cannot ride with them
    together = kf.ops.all_reduce(local, "sum")
    gathered = kf.ops.all_gather(local + training.rank)
    return (
        kf.control.every(2).call(note, together, 2.0),
        kf.control.every(3).call(note, kf.ops.max(gathered), 3.0),
    )


def main(policy: str, steps: int, file: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.0)
    training = kf.attach(model, optimizer, policies=[{"noise_scale": noise_scale, "two_gates": two_gates}[policy]()])

    @training.step
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True)) + tf.reduce_mean(x)
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    x = np.array([[3.0, 0.0], [1.0, 0.0]], np.float32)
    for batch in training.batches(x, batch_size=2, epochs=steps, seed=0):
        step(batch)
    if training.rank == 0:
        file.write_text(json.dumps(calls))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
