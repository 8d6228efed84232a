"""Keras' ``fit`` on structured data, with preprocessing layers in a ``tf.data`` pipeline, and one added line.

    python examples/keras/structured.py
    kungfu-run -np 2 --max 4 python examples/keras/structured.py

Predicts if a tumour is malignant, from columns of measures and a column of words. Before training, every peer adapts
the layers (``adapt``) to the same data. The pipeline shuffles with a seed, so its order is the same on every peer, and
each peer trains on its slice of a batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import kungfu as kf

NUMBERS = ["mean texture", "mean smoothness", "mean concavity", "worst radius", "worst symmetry"]
SIZES = np.array(["small", "medium", "large"])
Columns = dict[str, np.ndarray]


def load() -> tuple[Columns, Columns, np.ndarray, np.ndarray]:
    """Columns of 569 tumours by name, with a fifth held out: training and held-out columns, and the targets of both."""
    found = load_breast_cancer()
    table = {name: found.data[:, place : place + 1] for place, name in enumerate(found.feature_names)}
    columns: Columns = {name: table[name].astype(keras.config.floatx()) for name in NUMBERS}
    columns["size"] = SIZES[np.digitize(table["mean area"], [420.0, 780.0])]
    train, test = train_test_split(np.arange(len(found.target)), test_size=0.2, random_state=0)
    targets = found.target[:, None]
    parts = [{name: column[rows] for name, column in columns.items()} for rows in (train, test)]
    return parts[0], parts[1], targets[train], targets[test]


def pipeline(columns: Columns, targets: np.ndarray, *, batch_size: int, layers: dict[str, Any]) -> tf.data.Dataset:
    """Batches of the columns as numbers: words as one of three, the texture as its bin."""

    def prepared(row: dict[str, Any], target: Any) -> tuple[dict[str, Any], Any]:
        made = {name: row[name] for name in NUMBERS}
        for name, layer in layers.items():
            made[f"{name} as one of some"] = layer(row[name])
        return made, target

    rows = tf.data.Dataset.from_tensor_slices((columns, targets)).shuffle(len(targets), seed=0)
    return rows.batch(batch_size).map(prepared, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def adapted(columns: Columns) -> dict[str, Any]:
    """Layers that convert a column to one-hot rows, adapted to the columns."""
    words = keras.layers.StringLookup(num_oov_indices=0, output_mode="one_hot")
    bins = keras.layers.Discretization(num_bins=4, output_mode="one_hot")
    layers = {"size": words, "mean texture": bins}
    for name, layer in layers.items():
        layer.adapt(columns[name])
    return layers


def build(columns: Columns, *, dropout: float) -> keras.Model:
    """A network for all columns, compiled; it normalises numbers by the statistics of ``columns``."""
    inputs, parts = {}, []
    for name in NUMBERS:
        inputs[name] = keras.Input((1,), name=name.replace(" ", "_"))
        normalise = keras.layers.Normalization()
        normalise.adapt(columns[name])
        parts.append(normalise(inputs[name]))
    for name, width in (("size as one of some", 3), ("mean texture as one of some", 4)):
        inputs[name] = keras.Input((width,), name=name.replace(" ", "_"))
        parts.append(inputs[name])
    joined = keras.layers.Concatenate()(parts)
    hidden = keras.layers.Dropout(dropout)(keras.layers.Dense(16, activation="relu")(joined))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(
        keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")]
    )
    return model


def main() -> None:
    """Trains, and prints the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="batch size of the whole job")
    parser.add_argument("--float64", action="store_true", help="compute in float64, without dropout")
    parser.add_argument("--save", type=Path, help="a file for the best model")
    given = parser.parse_args()

    if given.float64:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    train, test, y_train, y_test = load()
    layers = adapted(train)
    data = pipeline(train, y_train, batch_size=given.batch_size, layers=layers)
    held_out = pipeline(test, y_test, batch_size=given.batch_size, layers=layers)
    model = build(train, dropout=0.0 if given.float64 else 0.2)
    callbacks = [keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True)]
    if given.save:
        callbacks.append(keras.callbacks.ModelCheckpoint(given.save, save_best_only=True))

    kf.keras.attach(model)  # the line

    model.fit(data, epochs=given.epochs, validation_data=held_out, callbacks=callbacks, shuffle=False, verbose=2)
    found = model.evaluate(held_out, verbose=0, return_dict=True)
    print(f"accuracy on {len(y_test)} held-out tumours: {found['accuracy']:.4f}, AUC {found['auc']:.4f}")


if __name__ == "__main__":
    main()
