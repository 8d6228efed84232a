"""A job that adds peers while each additional peer contributes enough throughput.

    kungfu-run -np 1 --max 4 python examples/autoscale.py

A step takes 20 ms on an emulated device, and 6 ms more for each other peer, as on a slow shared network: the second and
the third peer are worth their cost, the fourth hardly is.
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
    parser.add_argument("--epochs", type=int, default=40)
    given = parser.parse_args()

    keras.utils.set_random_seed(0)
    model, optimizer = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)]), keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    training = kf.attach(model, optimizer, policies=[kf.policies.autoscale(max_peers=4, efficiency=0.3)])

    @training.step
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    digits = load_digits()
    data = ((digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64))
    for x, y in training.batches(data, batch_size=16, epochs=given.epochs, seed=0):
        time.sleep(0.020 + 0.006 * (training.size - 1))
        train_step(x, y)
    if training.rank == 0:
        print(f"trained {given.epochs} epochs, at the end with {training.size} peers")


if __name__ == "__main__":
    main()
