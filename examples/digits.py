"""A small convolutional network on scikit-learn's handwritten digits: alone, or under kungfu-run.

    python examples/digits.py
    kungfu-run -np 2 --max 4 python examples/digits.py --device-ms 40

``--device-ms`` emulates the time of a step on a real device by a sleep before the step, so that four peers are faster
than two also on a machine with few cores. Everything else is real.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import kungfu as kf


def load() -> list[np.ndarray]:
    """1,797 images of 8 x 8 pixels, with a fifth held out: x_train, x_test, y_train, y_test."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype(np.float32)
    return train_test_split(images, digits.target.astype(np.int64), test_size=0.2, random_state=0)


def build(seed: int) -> keras.Model:
    """A network of about 6,000 weights; BatchNorm's and Dropout's state is the hardest part of a resize."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="batch size of the whole job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device-ms", type=float, default=0.0, help="emulated device time of a step")
    parser.add_argument("--three-from", type=int, metavar="STEP", help="from this step on at most three peers")
    parser.add_argument("--results", type=Path, help="a folder for what this peer found")
    return parser.parse_args()


def policy(three_from: int | None) -> kf.Policy:
    """The policy of the job: peers by the gradient noise scale, optionally under a cap set by a schedule."""
    follow_noise = kf.policies.gns_batch(max_peers=4)
    return follow_noise if three_from is None else kf.at_most(follow_noise, kf.policies.schedule({0: 4, three_from: 3}))


def main() -> None:
    """Trains, and prints the results."""
    given = arguments()
    x_train, x_test, y_train, y_test = load()
    model, optimizer = build(given.seed), keras.optimizers.SGD(0.05, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    seen = tf.Variable(tf.zeros([len(x_train)], tf.int64), trainable=False)
    training = kf.attach(model, optimizer, policies=[policy(given.three_from)], seed=given.seed)

    @training.step
    def train_step(x: tf.Tensor, y: tf.Tensor, index: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = training.average(gradients, loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.scatter_add(tf.IndexedSlices(tf.ones_like(index), index))

    data = (x_train, y_train, np.arange(len(x_train)))
    for x, y, index in training.batches(data, batch_size=given.batch_size, epochs=given.epochs, seed=given.seed):
        time.sleep(given.device_ms / 1000)
        train_step(x, y, index)

    predicted = np.argmax(model.predict(x_test, verbose=0), axis=1)
    accuracy = float(np.mean(predicted == y_test))
    if given.results:
        np.savez(
            given.results / f"peer-{training.peer}.npz", seen=seen.numpy(), rank=str(training.rank), accuracy=accuracy
        )
    if training.rank == 0:
        print(f"accuracy on {len(x_test)} held-out images: {accuracy:.4f}")


if __name__ == "__main__":
    main()
