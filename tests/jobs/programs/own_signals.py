"""Publishes a number in each step, and feeds one between two steps. own_signals.py FOLDER

What is published is the mean of a batch, and so is the loss: over all samples both are the same. Each peer feeds a
price once, after its first step, another one than the others. The policy asks for three peers while the price is low.
A step takes some milliseconds until the file FOLDER/hurry is there, and a second in the last quarter of the training.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf

SAMPLES, BATCH, EPOCHS = 48, 12, 100


@kf.policy
def three_while_cheap(training):
    price = training.fed("price", unit="dollars/hour")
    mean = kf.ops.weighted_mean(training.published("mean"), training.samples).named("published_mean")
    return (
        kf.control.always().when(price < 2).rescale(3),
        kf.control.always().when(mean > 1e9).stop(),
    )


def main(folder: Path) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.0)
    training = kf.attach(model, optimizer, policies=[three_while_cheap()])

    @training.step
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) + x)
        training.publish("mean", tf.reduce_mean(x))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    fed = False
    for x in training.batches(np.arange(SAMPLES, dtype=np.float32)[:, None], batch_size=BATCH, epochs=EPOCHS, seed=1):
        if step(x) is not training.SKIPPED and not fed:
            fed = True
            training.feed("price", 1.5 + training.peer)
        if not (folder / "hurry").exists():
            time.sleep(1.0 if 4 * int(optimizer.iterations) > 3 * EPOCHS * SAMPLES // BATCH else 0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
