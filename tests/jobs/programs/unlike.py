"""A program whose peers are not alike, in the way that it is told: unlike.py HOW.

The peers differ in ``order``, in which they also draw a number of the optimizer; in ``clipped`` only in how they round.
In ``rate`` and ``noise`` the program changes something between two steps, by a generator without a seed, in a loop and
in a callback; in ``graph`` by its number, in a loop in the graph.
"""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.policies import gns_batch
from tests.jobs.programs.program_parts import descending, own_id

HOW = sys.argv[1]
PEER = own_id()
if HOW == "clipped":
    tf.config.threading.set_intra_op_parallelism_threads(4 if PEER == 1 else 1)


def note(control, *values) -> None:
    """A hook that only listens."""


@kf.policy
def summed(training):
    """Two agreed numbers, added in the one or the other order."""
    a = kf.ops.all_reduce(training.loss, "mean")
    b = kf.ops.all_reduce(training.samples, "sum")
    c = b + a if HOW == "order" and PEER == 1 else a + b
    return kf.control.every(5).call(note, c)


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
    return [gns_batch(max_peers=2, min_peers=2), listening()] if HOW == "clipped" else [summed()]


def main() -> None:
    keras.utils.set_random_seed(0)
    width = 512 if HOW == "clipped" else 2
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width), keras.layers.Dense(1)])
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
    for batch in training.batches(x, batch_size=8, epochs=8, seed=0):
        if step(batch) is not training.SKIPPED and HOW == "rate":
            print("step done")
            optimizer.learning_rate.assign(np.random.default_rng().uniform())


if __name__ == "__main__":
    main()
