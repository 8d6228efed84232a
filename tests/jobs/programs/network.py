"""A small network with convolution, BatchNorm and Dropout that follows a schedule of sizes and records what it saw.

Each peer leaves DIR/PEER.json: how often it trained on each sample, its traces, its metric and the job's, and digests
of its state. Each step takes ``--pause-s`` more, and with as many peers as ``--patient-at`` says 40 ms more;
``--max-local`` is the largest micro-batch. With ``--every`` a policy asks for a checkpoint every so many steps.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.policies import schedule
from tests.jobs.programs.kept import keeping
from tests.jobs.programs.program_parts import descending, digest, leave, options


class Table(keras.layers.Layer):
    """Passes its input on; holds numbers that nobody updates, as a table of embeddings does."""

    def build(self, shape) -> None:
        start = keras.initializers.Constant(np.linspace(-3.0, 3.0, 1000, dtype=np.float32))
        self.table = self.add_weight(shape=(1000,), initializer=start, trainable=False)

    def call(self, x):
        return x


def build() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((4,)),
            Table(),
            keras.layers.Reshape((2, 2, 1)),
            keras.layers.Conv2D(8, 2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )


def main() -> None:
    amounts = {"samples": 100, "batch_size": 12, "epochs": 1, "max_local": None}
    given = options(results=Path(), schedule={}, keep="local_batch_size", patient_at=0, pause_s=0.0, every=0, **amounts)

    x = np.random.default_rng(0).normal(size=(given.samples, 4)).astype(np.float32)
    data = (x, x.sum(axis=1, keepdims=True), np.arange(given.samples))
    model, optimizer = build(), keras.optimizers.Adam(0.01)
    sizes = given.schedule
    rules = [schedule(sizes, keep=given.keep)] if sizes else []
    rules += [keeping(every=given.every)] if given.every else []
    training = kf.attach(model, optimizer, policies=rules)
    seen, counter, drawn = tf.Variable(tf.zeros([given.samples], tf.int64)), tf.Variable(0), tf.Variable(0.0)
    training.register("counter", counter)
    ids, heard = {"mean": np.array([float(training.peer)])}, list[list[Any]]()
    training.register("ids", lambda: ids["mean"], lambda value: ids.update(mean=value), kind="averaged")
    training.on_rescale(lambda what: heard.append([what.change, what.size_before, what.size]))
    metric, of_job, called = keras.metrics.Mean(), keras.metrics.Mean(), list[int]()
    training.metrics(of_job)

    def loss(found, x, y, index):
        metric.update_state(tf.ones_like(index))
        of_job.update_state(index)
        tf.py_function(lambda: called.append(1), [], [])
        drawn.assign(tf.random.uniform([]))
        return tf.reduce_mean(tf.square(found - y))

    def count(x, y, index):
        seen.scatter_add(tf.IndexedSlices(tf.ones_like(index), index))
        counter.assign_add(1)

    step = descending(training, model, optimizer, loss, count)
    walk = {"batch_size": given.batch_size, "epochs": given.epochs, "seed": 1, "max_local_batch_size": given.max_local}
    done = 0
    for x, y, index in training.batches(data, **walk):
        done += step(x, y, index) is not training.SKIPPED
        time.sleep(given.pause_s)
        if training.size == given.patient_at:
            steps = int(optimizer.iterations)
            wanted = max((at, size) for at, size in {0: training.size, **sizes}.items() if at <= steps)[1]
            waits = steps > 100 and wanted > training.size  # however long this machine takes to start a peer
            time.sleep(0.5 if waits else 0.04)

    seeds = [one for one in model.variables if one.name == "seed_generator_state"]
    found = {
        "left": training.left,
        "traces": training.traces(),
        "seen": seen.numpy().tolist(),
        "weights": digest([*model.weights, *optimizer.variables]),
        "table": digest([model.layers[0].table]),
        "peer": training.peer,
        "done": done,
        "counted": float(metric.count),
        "of_job": [float(of_job.count), float(of_job.result())],
        "counter": int(counter),
        "ids": ids["mean"].tolist(),
        "heard": heard,
        "called": len(called),
        "drawn": float(drawn),
        "between": float(tf.random.uniform([])),
        "seeds": [np.asarray(one).tolist() for one in seeds],
    }
    leave(given.results, found)


if __name__ == "__main__":
    main()
