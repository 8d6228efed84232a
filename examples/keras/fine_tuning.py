"""Fine-tuning in three fits: a network learns the digits 0 to 4; then a new head, and last all layers, learn 5 to 9.

    python examples/keras/fine_tuning.py
    kungfu-run -np 2 --max 4 python examples/keras/fine_tuning.py

Each ``fit`` is a phase of the job: freeze, compile, attach, fit, unfreeze, compile, attach, fit. A peer that joins in
the second or third fit skips the earlier ones, and receives their History and weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import kungfu as kf


def load(*, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Scikit-learn's images of five digits, 8 x 8 pixels each, and their classes from 0 to 4."""
    digits = load_digits()
    chosen = (digits.target >= first) & (digits.target < first + 5)
    images = (digits.images[chosen][..., None] / 16.0).astype(keras.config.floatx())
    return images, digits.target[chosen].astype(np.int64) - first


def build_base() -> keras.Model:
    """The layers that all fits share."""
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Flatten(),
    ]
    return keras.Sequential(layers, name="base")


def compiled(base: keras.Model, rate: float) -> keras.Model:
    """A model of the shared layers and a new head, compiled."""
    model = keras.Sequential([keras.Input((8, 8, 1)), base, keras.layers.Dense(5, activation="softmax")])
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> None:
    """Trains in three phases, and prints the accuracy after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="of each fit")
    parser.add_argument("--batch-size", type=int, default=64, help="batch size of the whole job")
    parser.add_argument("--float64", action="store_true", help="compute in float64")
    parser.add_argument("--save", type=Path, help="a file for the weights")
    given = parser.parse_args()
    if given.float64:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")

    keras.utils.set_random_seed(0)
    fit = {"batch_size": given.batch_size, "epochs": given.epochs, "verbose": 2}
    base = build_base()
    model = compiled(base, 1e-3)
    kf.keras.attach(model)  # the line
    x, y = load(first=0)
    history = model.fit(x, y, **fit)
    print(f"accuracy on the digits 0 to 4: {history.history['accuracy'][-1]:.4f}")

    base.trainable = False  # other digits: train only a new head
    model = compiled(base, 1e-3)
    kf.keras.attach(model)
    x, y = load(first=5)
    history = model.fit(x, y, **fit)
    print(f"accuracy on the digits 5 to 9, of the head: {history.history['accuracy'][-1]:.4f}")

    base.trainable = True  # then train all layers, at a small rate
    model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy", metrics=["accuracy"])
    kf.keras.attach(model)
    history = model.fit(x, y, **fit)
    print(f"accuracy on the digits 5 to 9, of all layers: {history.history['accuracy'][-1]:.4f}")
    if given.save:
        model.save_weights(given.save)


if __name__ == "__main__":
    main()
