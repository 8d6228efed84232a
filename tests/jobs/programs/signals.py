"""Two peers with one sample each and gradients [3, 0] and [1, 0]: what policies see of that, written down by rank 0.

signals.py STEPS FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from tests.jobs.programs.program_parts import descending

calls: list[list[float]] = []


def note(control, *values):
    calls.append([control.step, *values])


@kf.policy
def noise_scale(training):
    """The noise scale of the hand-computed case."""
    return kf.control.every(3).call(note, kf.monitor.gradient_noise_scale(training, decay=0.5))


def main(steps: int, file: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.0)
    training = kf.attach(model, optimizer, policies=[noise_scale()])

    step = descending(training, model, optimizer, lambda found, x: tf.reduce_mean(found) + tf.reduce_mean(x))

    x = np.array([[3.0, 0.0], [1.0, 0.0]], np.float32)
    for batch in training.batches(x, batch_size=2, epochs=steps, seed=0):
        step(batch)
    if training.rank == 0:
        file.write_text(json.dumps(calls))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
