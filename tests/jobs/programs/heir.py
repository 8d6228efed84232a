"""Peer 0 dies when another one has come in, and before its own next step: heir.py RESULTS.

The program counts its steps in a registered value. The other one trains five steps more; RESULTS is a folder where it
leaves PEER.json at its end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.policies import schedule
from tests.jobs.programs.program_parts import descending, die_beside

RESULTS = Path(sys.argv[1])


def main() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.01)
    training = kf.attach(model, optimizer, policies=[schedule({3: 2})])
    counted = {"steps": 0}
    training.register("counted", lambda: counted, counted.update)

    step = descending(training, model, optimizer, lambda found, x: tf.reduce_mean(tf.square(found - 1.0)))

    x, own_steps = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32), 0
    for batch in training.batches(x, batch_size=10, epochs=10**6, seed=0):
        done = step(batch) is not training.SKIPPED
        counted["steps"] += done
        own_steps += done
        if training.peer == 0:
            time.sleep(0.02)
            if training.size == 2:
                die_beside(RESULTS / "in", within_s=30.0)
        else:
            (RESULTS / "in").touch()
            if own_steps == 5:
                break
    found = {"done": int(optimizer.iterations), "counted": counted["steps"]}
    (RESULTS / f"{training.peer}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
