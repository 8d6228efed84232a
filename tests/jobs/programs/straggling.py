"""Trains while one peer is slow. straggling.py FOLDER PEER

A policy measures how fast the peers are, and only says what it would do. A step of PEER takes 150 ms more, and one of
the others 15 ms, until the file FOLDER/hurry is there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.policies import replace_stragglers

SAMPLES, BATCH, EPOCHS = 48, 12, 1_000_000


def main(folder: Path, slow: int) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.0)
    training = kf.attach(model, optimizer, policies=[kf.shadow(replace_stragglers(every=1_000_000))])

    @training.step
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) + x)
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for x in training.batches(np.arange(SAMPLES, dtype=np.float32)[:, None], batch_size=BATCH, epochs=EPOCHS, seed=1):
        step(x)
        if not (folder / "hurry").exists():
            time.sleep(0.15 if training.peer == slow else 0.015)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
