"""Linear regression in float64 that counts in its shared state how often the job trained on each sample.

Beside the model it counts steps in a registered variable, and steps and samples in a registered dictionary; BatchNorm's
moving mean forgets so slowly that its value tells how often it was updated; a metric of the job sees the numbers of the
samples of an epoch. Each peer leaves DIR/PEER.json.

While the file DIR/hurry is not there, a step takes some milliseconds more, and a second in the last quarter of the
training: the faults of a schedule must find a job, however long the machine takes for them. The number in DIR/size is
the size that the job is asked for. DIR/raise-N makes peer N raise an error, DIR/die-N ends it in a barrier.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from tests.jobs.programs.program_parts import die, digest, leave, options, own_id

FEATURES, PEERS = 5, 256
SHIFT, MOMENTUM = 5.0, 0.999  # of what BatchNorm sees: its moving mean after n updates is SHIFT (1 - MOMENTUM^n)
PATIENT_S = 1.0


class Counts(keras.layers.Layer):
    """Passes its input on. Frozen weights: how often each sample was trained on in each epoch, and some ballast."""

    def __init__(self, samples: int, epochs: int, ballast_mb: float) -> None:
        super().__init__(trainable=False, dtype="float64")
        self.seen = self.add_weight(shape=(epochs, samples), initializer="zeros", dtype="float64")
        self.add_weight(shape=(int(ballast_mb * 2**20 / 4),), initializer="ones", dtype="float32")

    def call(self, x: Any) -> Any:
        return x


def build(samples: int, epochs: int, ballast_mb: float) -> tuple[keras.Model, Any, Any, Any]:
    """The model, its slope, the counts, and its BatchNorm, on which nothing of the loss depends."""
    norm = keras.layers.BatchNormalization(momentum=MOMENTUM, center=False, scale=False, dtype="float64")
    slope = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype="float64")
    counts = Counts(samples, epochs, ballast_mb)
    model = keras.Sequential([keras.Input((FEATURES,), dtype="float64"), counts, norm, slope])
    return model, slope.kernel, counts.seen, norm


def data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """What is regressed on what, with noise; the same on all peers."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(samples, FEATURES))
    return x, x @ np.arange(1.0, FEATURES + 1)[:, None] + draw.normal(size=(samples, 1))


def times_seen(averaged: Any, places: Any) -> Any:
    """How often each sample was in the batches of all peers: the mean is their sum over the samples of the step."""
    total = 1.0 / tf.reduce_max(places)
    return tf.round(averaged * total)


@kf.policy
def as_asked(training: Any, results: Path, batch_size: int) -> Any:
    """Asks for the size in the file DIR/size, and keeps the batch of all peers; dies in a barrier where told to."""

    def ask(control: Any) -> None:
        if (results / f"die-{own_id()}").exists():
            die()
        file = results / "size"
        wanted = int(file.read_text() or control.size) if file.exists() else control.size
        if wanted != control.size:
            control.rescale(wanted)

    return (
        kf.control.every(4).call(ask),
        kf.control.on_rescale().set_global_batch_size(batch_size),
    )


def rest(given: Any, trained: int) -> None:
    """Waits between two steps, longer in the last quarter, unless it shall hurry."""
    if not (given.results / "hurry").exists():
        late = 4 * trained > 3 * given.epochs * -(-given.samples // given.batch_size)
        time.sleep(PATIENT_S if late else given.sleep_s)


def train(given: Any) -> dict[str, Any]:
    """Trains as `given` says; what came of it."""
    x, y = data(given.samples)
    model, slope, seen, norm = build(given.samples, given.epochs, given.ballast_mb)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.5)

    training = kf.attach(model, optimizer, policies=[as_asked(given.results, given.batch_size)])
    steps, counted = tf.Variable(0, dtype=tf.int64, trainable=False), {"steps": 0, "samples": 0}
    training.register("steps", steps)
    training.register("counted", lambda: counted, counted.update)
    numbers = keras.metrics.Mean()
    training.metrics(numbers)
    place = tf.one_hot(training.peer % PEERS, PEERS, dtype=tf.float64)

    @training.step
    def step(x: Any, y: Any, index: Any) -> Any:
        with tf.GradientTape() as tape:
            norm(x + SHIFT, training=True)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, slope) - y))
        (gradient,) = tape.gradient(loss, [slope.value])
        numbers.update_state(index)
        here = 1.0 / tf.maximum(tf.cast(tf.size(index), tf.float64), 1.0)
        mine = tf.math.unsorted_segment_sum(tf.ones_like(index, tf.float64), index, given.samples)
        gradient, averaged, places = training.average([gradient, mine * here, place * here], loss=loss)
        optimizer.apply_gradients([(gradient, slope)])
        epoch = tf.cast(tf.reduce_sum(seen.value) / given.samples, tf.int32)
        row = tf.expand_dims(times_seen(averaged, places), 0)
        seen.assign_add(row * tf.expand_dims(tf.one_hot(epoch, given.epochs, dtype=tf.float64), 1))
        steps.assign_add(1)
        return tf.reduce_sum(row)

    skipped, rows = 0, (x, y, np.arange(given.samples))
    for batch in training.batches(rows, batch_size=given.batch_size, epochs=given.epochs, seed=3):
        if (trained := step(*batch)) is training.SKIPPED:
            skipped += 1
        else:
            counted.update(steps=counted["steps"] + 1, samples=counted["samples"] + int(trained))
        rest(given, int(optimizer.iterations))
        if (given.results / f"raise-{training.peer}").exists():
            raise ValueError(f"peer {training.peer} was told to fail")
    training.finish()
    counts, times = np.unique(np.asarray(seen), return_counts=True)
    return {
        "left": training.left,
        "traces": training.traces(),
        "skipped": skipped,
        "steps": int(steps),
        "counted": counted,
        "numbers": [float(numbers.count), float(numbers.result())],
        "mean": np.asarray(norm.moving_mean).tolist(),
        "seen": dict(zip(map(str, counts.tolist()), times.tolist(), strict=True)),
        "slope": np.asarray(slope).ravel().tolist(),
        "digest": digest([*model.weights, *optimizer.variables, seen, steps]),
    }


def main() -> None:
    given = options(results=Path(), samples=200, batch_size=12, epochs=40, sleep_s=0.02, ballast_mb=0.0)
    leave(given.results, train(given))


if __name__ == "__main__":
    main()
