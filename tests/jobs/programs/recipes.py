"""A small network for images of any size, which gives the recipes of docs/recipes.md what they watch.

After every tenth step it feeds the number of ``--fed NAME=NUMBER``; the peer ``--slow`` needs 0.3 s more for each step.
With ``--every H`` the peers average models. It trains until it is told to stop.
"""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from tests.jobs.programs.program_parts import options

SAMPLES, PIXELS = 96, 8
PACE_S, SLOW_S = 0.02, 0.3


def main() -> None:
    given = options(fed="", slow=-1, every=0)
    keras.utils.set_random_seed(0)
    images = np.random.default_rng(0).normal(size=(SAMPLES, PIXELS, PIXELS, 1)).astype(np.float32)
    labels = np.random.default_rng(1).normal(size=(SAMPLES, 1)).astype(np.float32)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((None, None, 1)), layers.Conv2D(2, 3), layers.GlobalAveragePooling2D(), layers.Dense(1)]
    )
    optimizer = keras.optimizers.SGD(0.05)
    training = kf.attach(
        model, optimizer, sync=kf.control.average_models(every=given.every) if given.every else "gradients"
    )
    pixels = tf.Variable(PIXELS, dtype=tf.int64, trainable=False)
    training.register("pixels", pixels)
    last = [tf.Variable(tf.zeros_like(one), trainable=False) for one in model.trainable_variables]
    for number, one in enumerate(last):
        training.register(f"last_{number}", one)

    @training.step
    def step(x: Any, y: Any) -> None:
        x = tf.image.resize(x, tf.cast(tf.stack([pixels, pixels]), tf.int32))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        training.publish("along_last", tf.add_n([tf.reduce_sum(a * b) for a, b in zip(grads, last, strict=True)]))
        grads = training.average(grads, loss=loss)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        for one, grad in zip(last, grads, strict=True):
            one.assign(grad)

    for number, (x, y) in enumerate(training.batches((images, labels), batch_size=12, epochs=1_000_000, seed=1)):
        time.sleep(PACE_S + (SLOW_S if training.peer == given.slow else 0.0))
        step(x, y)
        if given.fed and number % 10 == 0:
            name, _, value = given.fed.partition("=")
            training.feed(name, float(value))
    assert training.traces() <= 1, "neither a batch nor the size of an image makes the step another one"


if __name__ == "__main__":
    main()
