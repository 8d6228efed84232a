"""A job that replaces a slow peer while it trains.

    kungfu-run -np 3 python examples/straggler.py

In each step all peers wait for the slowest. Peer 1 takes 60 ms for a step, and the others 15 (emulated by a sleep, as
on a machine with other users). `replace_stragglers` detects peer 1, and a new peer replaces it as soon as the new peer
is ready.
"""

from __future__ import annotations

import argparse
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import kungfu as kf


def main() -> None:
    """Trains on 16 samples per peer and step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--slow-peer", type=int, default=1)
    given = parser.parse_args()

    keras.utils.set_random_seed(0)
    model, optimizer = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)]), keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    training = kf.attach(model, optimizer, policies=[kf.policies.replace_stragglers()])

    @training.step
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    digits = load_digits()
    data = ((digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64))
    for x, y in training.batches(data, batch_size=48, epochs=given.epochs, seed=0):
        time.sleep(0.060 if training.peer == given.slow_peer else 0.015)
        train_step(x, y)
    if training.rank == 0:
        print(f"trained {given.epochs} epochs")


if __name__ == "__main__":
    main()
