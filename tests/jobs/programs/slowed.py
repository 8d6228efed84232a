"""Trains beside a peer that is slow. slowed.py FOLDER PEER [STEP SIZE]

Before each step that peer sleeps for 0.6 s while the file FOLDER/slow is there, and every other one for 0.05 s.
With STEP and SIZE a schedule asks for so many peers at that step; a peer that joins waits for the file FOLDER/come
before it attaches. Nobody sleeps once the file FOLDER/hurry is there; until then a step of the last quarter takes a
second, so that the job does not end before.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.policies import replace_stragglers, schedule

SAMPLES, BATCH, EPOCHS = 48, 12, 200
SETTINGS = json.loads(os.environ["KUNGFU_SETTINGS"])


def pause_s(folder: Path, *, is_slow: bool, step: int) -> float:
    """For how long a peer sleeps before a step."""
    if (folder / "hurry").exists():
        return 0.0
    if 4 * step > 3 * EPOCHS * SAMPLES // BATCH:
        return 1.0
    return 0.6 if is_slow and (folder / "slow").exists() else 0.05


def main(folder: Path, slow: int, sizes: dict[int, int]) -> None:
    joins = not SETTINGS["checkpoints"]["founders"]
    while joins and sizes and not (folder / "come").exists():
        time.sleep(0.05)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.0)
    growing = [schedule(sizes)] if sizes else []
    replacing = replace_stragglers(every=10, threshold=0.5, alpha=0.2)
    training = kf.attach(model, optimizer, policies=[*growing, replacing])

    @training.step
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) + x)
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for x in training.batches(np.arange(SAMPLES, dtype=np.float32)[:, None], batch_size=BATCH, epochs=EPOCHS, seed=1):
        time.sleep(pause_s(folder, is_slow=SETTINGS["peer"] == slow, step=int(optimizer.iterations)))
        step(x)


if __name__ == "__main__":
    words = list(map(int, sys.argv[2:]))
    main(Path(sys.argv[1]), words[0], dict([words[1:]]) if words[1:] else {})
