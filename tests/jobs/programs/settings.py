"""A model on which a rescale changes the learning rate, and a policy ends training; tells what each step was like.

Each peer leaves DIR/PID.json: for every step it did, its number, the learning rate and the batch of all peers.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.policies import linear_scaling, schedule

LAST_STEP = 2000


@kf.policy
def enough(training, *, after_joining: int):
    """Stops so many steps after the third peer has joined, and at the latest after `LAST_STEP`, a minute of them."""
    joined = kf.ops.where(training.size == 3, 1.0, 0.0).cumulative()
    return kf.control.always().when((joined >= after_joining) | (training.step >= LAST_STEP)).stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path, required=True)
    given = parser.parse_args()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.125)
    policies = [schedule({5: 3}), linear_scaling(over_steps=4), enough(after_joining=12)]
    training = kf.attach(model, optimizer, policies=policies)
    told = []

    @training.step
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.convert_to_tensor(optimizer.learning_rate), tf.convert_to_tensor(optimizer.iterations)

    for x in training.batches(np.ones([100_000, 1], np.float32), batch_size=8, epochs=1, seed=0):
        time.sleep(0.03)
        done = step(x)
        if done is not training.SKIPPED:
            told.append([int(done[1]), float(done[0]), training.size])
    given.results.mkdir(exist_ok=True)
    weights = np.asarray(model.weights[0]).tobytes().hex()
    (given.results / f"{os.getpid()}.json").write_text(
        json.dumps({"steps": told, "stopped": training.stopped, "weights": weights})
    )


if __name__ == "__main__":
    main()
