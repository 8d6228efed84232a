"""A network with convolution and BatchNorm, whose last step of an epoch has fewer samples than there are peers.

Each peer leaves DIR/PEER.json: what it trained on, and what its variables and its metric came to.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from tests.jobs.programs.program_parts import descending, digest, leave, options

SAMPLES = 25


def main() -> None:
    given = options(results=Path(), max_local=None)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(2, 3, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((4, 4, 1)), *layers, keras.layers.Dense(1)])
    optimizer, metric, of_job = keras.optimizers.SGD(0.1), keras.metrics.Mean(), keras.metrics.Mean()
    seen, counter = tf.Variable(tf.zeros([SAMPLES], tf.int64)), tf.Variable(0)
    training = kf.attach(model, optimizer)
    training.register("counter", counter)
    training.metrics(of_job)
    called: list[int] = []
    drawn = tf.Variable(0.0)

    def loss(found, x, index):
        metric.update_state(tf.ones_like(index))
        of_job.update_state(index)
        tf.py_function(lambda: called.append(1), [], [])
        drawn.assign(tf.random.uniform([]))
        return tf.reduce_mean(tf.square(found))

    def count(x, index):
        seen.scatter_add(tf.IndexedSlices(tf.ones_like(index), index))
        counter.assign_add(1)

    step = descending(training, model, optimizer, loss, count)
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4, 4, 1)).astype(np.float32)
    data, walk = (x, np.arange(SAMPLES)), {"batch_size": 12, "epochs": 2, "seed": 1}
    for batch in training.batches(data, **walk, max_local_batch_size=given.max_local):
        step(*batch)

    found = {
        "seen": seen.numpy().tolist(),
        "counted": float(metric.count),
        "of_job": [float(of_job.count), float(of_job.result())],
        "counter": int(counter),
        "called": len(called),
        "drawn": float(drawn),
        "between": float(tf.random.uniform([])),
        "traces": training.traces(),
        "weights": digest([*model.weights, *optimizer.variables]),
    }
    leave(given.results, found)


if __name__ == "__main__":
    main()
