"""Keras' ``fit``, which feeds its validation loss to the policies of the command line.

The validation data are told to get worse after the third epoch. What each peer ended with is left in DIR/PEER.json: the
weights after every step, those that ``on_train_end`` finds, and those after ``fit``. With ``--reads-s S`` a peer reads
a checkpoint for this many seconds, and peer 0 is killed over it.
"""

from __future__ import annotations

import time
from pathlib import Path

import keras
import numpy as np

import kungfu as kf
from kungfu.training.state.checkpoint_manager import CheckpointManager
from tests.jobs.programs.program_parts import die, digest, leave, options, own_id


def main() -> None:
    given, read = options(results=Path(), reads_s=0.0), CheckpointManager.read_named

    def read_named(manager, name):
        if given.reads_s and own_id() == 0:
            time.sleep(2.0)
            die()
        time.sleep(given.reads_s)
        return read(manager, name)

    CheckpointManager.read_named = read_named
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    training = kf.keras.attach(model)
    steps, ended = {}, []

    class Validated(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps[training.step_number] = digest(model.trainable_variables)

        def on_epoch_end(self, epoch, logs=None):
            training.feed("val_loss", 1 / (epoch + 1) if epoch < 3 else logs["val_loss"] + epoch)

        def on_train_end(self, logs=None):
            ended.append(digest(model.weights))

    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    history = model.fit(x, y, batch_size=12, epochs=12, validation_data=(x, y), callbacks=[Validated()], verbose=0)
    found = {"steps": steps, "on_train_end": ended, "trainable": digest(model.trainable_variables)}
    leave(given.results, found | {"all": digest(model.weights), "epochs": history.epoch, "stopped": training.stopped})


if __name__ == "__main__":
    main()
