"""Keras' ``evaluate`` and ``predict`` in a job, inside of ``fit`` and after it: what they came to is in DIR/PEER.json.

A confusion table counts how often each sample was evaluated. In the validation of epoch 1 a peer is killed in the
middle of its part; after ``fit`` the others go on, until only rank 0 evaluates.
"""

from __future__ import annotations

import sys
from collections import UserDict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from tests.jobs.programs.keras_fit import Largest
from tests.jobs.programs.program_parts import die, in_float64, leave, own_id

SAMPLES, BATCH = 70, 6
KILLED = 2


def build() -> Any:
    """A network of float64 whose second output is the number of the sample."""
    in_float64(1)
    given = keras.Input((4,))
    value = keras.layers.Dense(1, name="value")(keras.layers.BatchNormalization()(given[:, :3]))
    number = keras.layers.Identity(name="number")(given[:, 3:])
    model = keras.Model(given, {"value": value, "number": number})
    seen = keras.metrics.MeanIoU(SAMPLES, name="seen")
    metrics = {"value": ["mae", Largest()], "number": [seen]}
    model.compile(keras.optimizers.Adam(0.02), {"value": "mse", "number": None}, metrics=metrics)
    return model, seen


def data() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    number = np.arange(SAMPLES, dtype=np.float64)[:, None]
    x = np.concatenate([np.random.default_rng(0).normal(size=(SAMPLES, 3)), number], axis=1)
    return x, {"value": x[:, :3].sum(axis=1, keepdims=True), "number": number}


class Found(UserDict[str, Any]):
    """No plain value, so each peer keeps its own."""


class Watching(keras.callbacks.Callback):
    """Records which batches this peer has evaluated, the results, and what Keras alone finds at the end of an epoch."""

    def __init__(self, seen: Any, found: Found, **given: Any) -> None:
        super().__init__()
        self._seen, self.found, self.epoch = seen, found, -1
        self._given = Found(given)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        plain = self.model.evaluate(**self._given, verbose=0, return_dict=True)
        self.found.setdefault("at the end", []).append([plain["loss"], logs["val_loss"]])

    def on_test_begin(self, logs: Any = None) -> None:
        self.found[f"batches {self.epoch}"] = []

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found[f"batches {self.epoch}"].append(batch)
        if own_id() == KILLED and self.epoch == 1 and len(self.found["batches 1"]) == 2:
            die()

    def on_test_end(self, logs: Any = None) -> None:
        self.found[f"seen {self.epoch}"] = np.diag(np.asarray(self._seen.total_cm)).tolist()
        self.found[f"loss {self.epoch}"] = logs["loss"]


def main(folder: Path) -> None:
    own = own_id()
    (x, y), (model, seen), found = data(), build(), Found()
    kf.keras.attach(model, combine={"largest": "max"})
    watching = Watching(seen, found, x=x, y=y, batch_size=BATCH)
    history = model.fit(
        x, y, batch_size=14, epochs=3, verbose=0, validation_data=(x, y), validation_batch_size=BATCH,
        callbacks=[watching],
    )  # fmt: skip
    found["history"] = history.history
    given = {"verbose": 0, "batch_size": BATCH}

    watching.epoch = "after"
    found["after"] = model.evaluate(x, y, callbacks=[watching], **given)
    whole = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    found["dataset"] = model.evaluate(whole, verbose=0, return_dict=True)
    found["plain"] = keras.Model.evaluate(model, x, y, return_dict=True, **given)
    for name, outputs in (
        ("predict", model.predict(x, **given)),
        ("predict dataset", model.predict(whole, verbose=0)),
        ("plain predict", keras.Model.predict(model, x, **given)),
    ):
        assert outputs["number"].ravel().tolist() == list(range(SAMPLES)), "in the order of the data"
        found[name] = outputs["value"].ravel().tolist()
    found["few"] = model.evaluate(x[:3], {name: one[:3] for name, one in y.items()}, verbose=0, return_dict=True)
    found["others"] = model.evaluate(x + own, y, verbose=0, return_dict=True)["loss"]
    rank = model.fit.attached.training.rank
    if rank == 0:
        found["alone"] = model.evaluate(x, y, return_dict=True, **given)
    leave(folder, {**found, "rank": rank})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
