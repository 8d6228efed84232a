"""Keras' ``fit`` of a small transformer that predicts the next character of Python's own source.

    python examples/keras/text.py
    kungfu-run -np 2 --max 4 python examples/keras/text.py

Lines have different lengths: the embedding masks the padding, so the loss is a mean over the actual characters, whose
number differs between the peers' slices. In a job the loss is nevertheless that of the whole batch.
"""

from __future__ import annotations

import argparse
import heapq
import inspect
import json
import string
import textwrap

import keras
import numpy as np

import kungfu as kf

LENGTH = 32  # characters of a line, at most
CHARACTERS = string.ascii_lowercase + string.digits + " _.,:()[]=\"'#"
START, OTHER = len(CHARACTERS) + 1, len(CHARACTERS) + 2  # 0 is padding


def load(lines: int) -> tuple[np.ndarray, np.ndarray]:
    """The characters as numbers, a row per line, and the next characters."""
    sources = [inspect.getsource(module) for module in (textwrap, heapq, json, argparse)]
    texts = [line.strip().lower()[:LENGTH] for source in sources for line in source.splitlines() if line.strip()]
    numbers = [(START, *(CHARACTERS.find(one) + 1 or OTHER for one in text)) for text in texts]
    found = list(dict.fromkeys(numbers))[:lines]  # without duplicates
    rows = np.zeros((len(found), LENGTH + 1), np.int32)
    for row, line in zip(rows, found, strict=True):
        row[: len(line)] = line
    return rows[:, :-1] * (rows[:, 1:] > 0), rows[:, 1:]


class Positions(keras.layers.Layer):
    """A layer that adds the embedding of its position in the line to each character."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True

    def build(self, shape: tuple[int, ...]) -> None:
        self.places = self.add_weight(shape=shape[1:], initializer="uniform", name="places")

    def call(self, x: object) -> object:
        return x + self.places


def build(dropout: float = 0.1) -> keras.Model:
    """A model with one block of attention to the previous characters, compiled."""
    keras.utils.set_random_seed(0)
    given = keras.Input((LENGTH,), dtype="int32")
    x = Positions()(keras.layers.Embedding(OTHER + 1, 32, mask_zero=True)(given))
    attention = keras.layers.MultiHeadAttention(2, 16, dropout=dropout)(x, x, use_causal_mask=True)
    x = keras.layers.LayerNormalization()(keras.layers.Add()([x, attention]))
    hidden = keras.layers.Dense(32)(keras.layers.Dense(64, activation="gelu")(x))
    x = keras.layers.LayerNormalization()(keras.layers.Add()([x, hidden]))
    model = keras.Model(given, keras.layers.Dense(OTHER + 1, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def main() -> None:
    """Trains, and prints the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64, help="batch size of the whole job")
    parser.add_argument("--float64", action="store_true", help="compute in float64, without dropout")
    parser.add_argument("--lines", type=int, default=1600, help="most lines of source")
    given = parser.parse_args()
    if given.float64:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")

    x, y = load(given.lines)
    model = build(dropout=0.0 if given.float64 else 0.1)

    kf.keras.attach(model, policies=[kf.policies.gns_batch(max_peers=4)])  # the line

    held_out = len(x) // 10
    history = model.fit(
        x[:-held_out], y[:-held_out], batch_size=given.batch_size, epochs=given.epochs,
        validation_data=(x[-held_out:], y[-held_out:]), verbose=2,
    )  # fmt: skip
    print(f"accuracy on held-out lines: {history.history['val_accuracy'][-1]:.4f} of the characters")


if __name__ == "__main__":
    main()
