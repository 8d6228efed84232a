"""A job with a deadline, which uses only as many peers as it needs to meet the deadline.

    kungfu-run -np 1 --max 4 python examples/utility.py

A step takes 20 ms on an emulated device. The job is worth 100 until its deadline and less and less after it, and a peer
costs 60 an hour. One peer would be late, so the policy adds peers, but no more than the deadline needs, since these
would only increase the cost.
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
    parser.add_argument("--deadline-s", type=float, default=60.0, help="seconds from the first step")
    given = parser.parse_args()

    worth = kf.worth.points({given.deadline_s: 100, 1.5 * given.deadline_s: 0})
    policy = kf.policies.utility(worth=worth, price_per_hour=60, max_peers=4)

    keras.utils.set_random_seed(0)
    model, optimizer = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)]), keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    training = kf.attach(model, optimizer, policies=[policy])

    @training.step
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    digits = load_digits()
    data = ((digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64))
    begun = time.monotonic()
    for x, y in training.batches(data, batch_size=16, epochs=given.epochs, seed=0):
        time.sleep(0.020)
        train_step(x, y)
    if training.rank == 0:
        took = time.monotonic() - begun
        print(f"trained {given.epochs} epochs in {took:.0f} s for a deadline of {given.deadline_s:.0f} s, "
              f"at the end with {training.size} peers")  # fmt: skip


if __name__ == "__main__":
    main()
