"""A small network that keeps itself, and tells which samples each of its steps took.

Each peer appends to DIR/PEER.jsonl, step by step: the steps done, and the samples of its slice; behind the last one
what it ended with. A policy asks for a checkpoint every EVERY steps, which some ballast makes take longer. Of the
checkpoints in ``--still`` the second one is being written for ever.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from tests.jobs.programs.program_parts import descending, digest, options

SAMPLES, BALLAST = 4000, 1 << 24  # 64 MiB


@kf.policy
def keeping(training, *, every: int):
    """A checkpoint every so many steps."""
    return kf.control.every(every).checkpoint()


def stand_still(kept: Path) -> None:
    """From here on the disk takes one checkpoint below ``kept``, and the writing of the next one never comes back."""
    sync = os.fsync

    def synced(descriptor: int) -> None:
        while ".writing-" in os.readlink(f"/proc/self/fd/{descriptor}") and (kept / "latest").exists():
            time.sleep(0.05)
        sync(descriptor)

    os.fsync = synced


def main() -> None:
    given = options(results=Path(), every=20, still="")
    if given.still:
        stand_still(Path(given.still))
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    training = kf.attach(model, optimizer, policies=[keeping(every=given.every)])
    counted, mean = {"steps": 0}, {"value": np.array([float(training.peer)])}
    training.register("counted", lambda: counted, counted.update)
    training.register("mean", lambda: mean["value"], lambda value: mean.update(value=value), kind="averaged")
    training.register("ballast", tf.Variable(tf.ones([BALLAST])), kind="local")

    def loss(found, x, index):
        return tf.reduce_mean(tf.square(found - x))

    step = descending(training, model, optimizer, loss, lambda x, index: (index, optimizer.iterations.value))
    data = (np.linspace(0, 1, SAMPLES, dtype=np.float32).reshape(-1, 1), np.arange(SAMPLES))
    given.results.mkdir(exist_ok=True)
    with (given.results / f"{training.peer}.jsonl").open("w") as file:
        for x, index in training.batches(data, batch_size=20, epochs=1, seed=1):
            done = step(x, index)
            if done is not training.SKIPPED:
                counted["steps"] += 1
                print(json.dumps([int(done[1]), done[0].numpy().tolist()]), file=file, flush=True)
        weights = digest([*model.weights, *optimizer.variables])
        ended = {"weights": weights, "counted": counted, "mean": mean["value"].tolist(), "traces": training.traces()}
        print(json.dumps(ended), file=file)


if __name__ == "__main__":
    main()
