"""Keras' ``fit`` on scikit-learn's handwritten digits, with one added line: alone, or as a job of several peers.

    python examples/keras/digits.py
    kungfu-run -np 2 --max 4 python examples/keras/digits.py

Without the line marked "the line", this is a script without kungfu.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import kungfu as kf


def load() -> list[np.ndarray]:
    """1,797 images of 8 x 8 pixels, with a fifth held out: x_train, x_test, y_train, y_test."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype(keras.config.floatx())
    return train_test_split(images, digits.target.astype(np.int64), test_size=0.2, random_state=0)


def build(dropout: float = 0.2) -> keras.Model:
    """A small convolutional network, compiled."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> None:
    """Trains, and prints the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="batch size of the whole job")
    parser.add_argument("--float64", action="store_true", help="compute in float64, without dropout")
    parser.add_argument("--save", type=Path, help="a file for the best model")
    given = parser.parse_args()
    if given.float64:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")

    x_train, x_test, y_train, y_test = load()
    model = build(dropout=0.0 if given.float64 else 0.2)
    callbacks = [keras.callbacks.ReduceLROnPlateau("val_loss", patience=2)]
    if given.save:
        callbacks.append(keras.callbacks.ModelCheckpoint(given.save, save_best_only=True))

    kf.keras.attach(model, policies=[kf.policies.gns_batch(max_peers=4)])  # the line

    history = model.fit(
        x_train, y_train, batch_size=given.batch_size, epochs=given.epochs, validation_data=(x_test, y_test),
        callbacks=callbacks, verbose=2,
    )  # fmt: skip
    print(f"accuracy on {len(x_test)} held-out images: {history.history['val_accuracy'][-1]:.4f}")


if __name__ == "__main__":
    main()
