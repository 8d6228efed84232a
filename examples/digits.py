"""A small convolutional network on scikit-learn's handwritten digits: alone, or under kungfu-run.

python examples/digits.py
kungfu-run -np 2 --max 4 python examples/digits.py
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import kungfu as kf
from kungfu.policies import gns_batch


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """1,797 images of 8 x 8 pixels; a fifth is held out."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype(np.float32)
    return train_test_split(images, digits.target.astype(np.int64), test_size=0.2, random_state=0)


def build(seed: int) -> keras.Model:
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device-ms", type=float, default=0.0, help="emulated device time of a step, slept")
    parser.add_argument("--results", type=Path, help="a folder for what this peer found")
    arguments = parser.parse_args()

    x_train, x_test, y_train, y_test = load()
    model, optimizer = build(arguments.seed), keras.optimizers.SGD(0.05, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    seen = tf.Variable(tf.zeros([len(x_train)], tf.int64), trainable=False)
    training = kf.attach(model, optimizer, policies=[gns_batch(max_peers=4)], seed=arguments.seed)

    @training.step
    def train_step(x, y, index):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = training.average(gradients, loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.scatter_add(tf.IndexedSlices(tf.ones_like(index), index))

    data = (x_train, y_train, np.arange(len(x_train)))
    for x, y, index in training.batches(
        data, batch_size=arguments.batch_size, epochs=arguments.epochs, seed=arguments.seed
    ):
        time.sleep(arguments.device_ms / 1000)
        train_step(x, y, index)

    accuracy = float(np.mean(np.argmax(model.predict(x_test, verbose=0), axis=1) == y_test))
    if training.rank == 0:
        print(f"accuracy on {len(x_test)} held-out images: {accuracy:.4f}")


if __name__ == "__main__":
    main()
