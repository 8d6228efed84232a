"""A program whose peers are not alike, in the way that it is told: unlike.py HOW [FILE].

The first peers differ in ``order``, in which they also draw a number of the optimizer, ``environment``, ``model``; in
``threads`` and ``clipped`` only in how they round. In ``joiner`` the second peer differs, which a rule asks for. With a
file peers train until it is there. In ``rate`` and ``noise`` the program changes something between two steps, by a
generator without a seed, in a loop and in a callback; in ``graph`` by its number, in a loop in the graph.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.policies import gns_batch, schedule
from tests.jobs.programs.common import descending, own_id

HOW, FILE = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "")
PEER = own_id()
ROUNDING = ("threads", "clipped")
if HOW in ROUNDING:
    tf.config.threading.set_intra_op_parallelism_threads(4 if PEER == 1 else 1)


def note(control, *values) -> None:
    """A hook that only listens, and ends training once the file is there: what rank 0 sees of it counts for all."""
    if FILE.name and FILE.exists():
        control.stop()


@kf.policy
def summed(training):
    """Two agreed numbers, added in the one or the other order."""
    a = kf.ops.all_reduce(training.loss, "mean")
    b = kf.ops.all_reduce(training.samples, "sum")
    c = b + a if HOW == "order" and PEER == 1 else a + b
    every = 7 if HOW == "joiner" and PEER == 1 else 5
    return kf.control.every(every).call(note, c)


@kf.policy
def from_environment(training):
    """A number of this process."""
    bound = float(PEER) if HOW == "environment" else 1.0
    return kf.control.every(5).when(training.step > bound).call(note, training.step)


@kf.policy
def listening(training):
    """Barriers."""
    return kf.control.every(10).call(note, training.step)


class Noise(keras.callbacks.Callback):
    """Adds to the weights after a batch, other numbers on each peer."""

    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.layers[0].kernel
        print("step done")
        kernel.assign_add(np.random.default_rng().normal(size=kernel.shape).astype(np.float32))


def fit_with_noise(model) -> None:
    model.compile(keras.optimizers.SGD(0.01), "mse")
    kf.keras.attach(model)
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    model.fit(x, x[:, :1], batch_size=8, epochs=20, verbose=0, callbacks=[Noise()])


def policies() -> list:
    if HOW in ("rate", "graph"):  # no barrier but that for which the checksum asks
        return []
    if HOW in ROUNDING:
        return [gns_batch(max_peers=2, min_peers=2), listening()]
    grows = [schedule({4: 2})] if HOW == "joiner" else []
    return [summed(), from_environment(), *grows]


def main() -> None:
    keras.utils.set_random_seed(0)
    width = 512 if HOW in ROUNDING else 3 if HOW == "model" and PEER == 1 else 2
    model = keras.Sequential(
        [keras.Input((width if HOW in ROUNDING else 2,)), keras.layers.Dense(width), keras.layers.Dense(1)]
    )
    if HOW == "noise":
        fit_with_noise(model)
        return
    momentum = (0.91, 0.87)[PEER] if HOW == "order" else 0.0
    optimizer = keras.optimizers.SGD(0.01, momentum, global_clipnorm=0.1 if HOW == "clipped" else None)
    training = kf.attach(model, optimizer, policies=policies())

    step = descending(training, model, optimizer, lambda found, x: tf.reduce_mean(tf.square(found - 1.0)))

    @tf.function
    def several(x):
        for number in tf.range(40):
            step(x)
            tf.print("step done", number, output_stream=sys.stdout)
            model.layers[0].kernel.assign_add(tf.fill([2, 2], 0.1 * PEER))

    x = np.random.default_rng(0).normal(size=(40, model.input_shape[1])).astype(np.float32)
    if HOW == "graph":
        step(x)
        several(x)
        training.finish()
        return
    for batch in training.batches(x, batch_size=8, epochs=10**6 if len(sys.argv) > 2 else 8, seed=0):
        if step(batch) is not training.SKIPPED and HOW == "rate":
            print("step done")
            optimizer.learning_rate.assign(np.random.default_rng().uniform())
        if len(sys.argv) > 2:
            time.sleep(0.02)


if __name__ == "__main__":
    main()
