"""A model of one weight that stays as it is, trained at a pace that a program chooses for each peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from tests.jobs.programs.program_parts import descending

SAMPLES, BATCH = 48, 12
LATE_S = 1.0


def train(folder: Path, policies: Sequence[kf.Policy], *, epochs: int, pause_s: Callable[[int], float]) -> None:
    """Trains under policies, each peer with a pause before each step, until the file FOLDER/hurry is there.

    Args:
        folder: Where the file is looked for.
        policies: Those of the job.
        epochs: Of four steps. In the last quarter of them each pause is a second, so that the job does not end before
            the test has seen what it waits for.
        pause_s: The seconds of a pause, by the number of the peer.
    """
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.0)
    training = kf.attach(model, optimizer, policies=policies)

    step = descending(training, model, optimizer, lambda found, x: tf.reduce_mean(found + x))

    last_quarter = 3 * epochs * SAMPLES // BATCH // 4
    for x in training.batches(np.arange(SAMPLES, dtype=np.float32)[:, None], batch_size=BATCH, epochs=epochs, seed=1):
        if not (folder / "hurry").exists():
            time.sleep(LATE_S if int(optimizer.iterations) > last_quarter else pause_s(training.peer))
        step(x)
