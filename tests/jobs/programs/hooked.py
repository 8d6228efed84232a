"""A hook that does all that rules can, one thing after the other. hooked.py FOLDER

It asks for a third peer at the same batch and for another learning rate; at three peers for another batch, for another
temperature (each peer for another one) and for the end of rank 1; then for a checkpoint and for the end of training.
A second hook asks for the same settings at three peers, and comes too late.
Each peer that is there at the end leaves FOLDER/PEER.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np

import kungfu as kf
from tests.jobs.programs.common import descending

BATCH, LARGER = 12, 30
own = {"peer": -1, "temperature": 1.0, "grows": False}


def adapt(control, step, batch):
    assert (type(step), type(batch)) == (int, int)
    assert step == control.step
    if control.size == 2 and batch == BATCH:
        if own["grows"]:  # it is called while the third peer is on its way, too
            return
        own["grows"] = True
        control.rescale(3, keep="global_batch_size")
        control.set_learning_rate(0.5)
    elif control.size == 3:
        control.set_global_batch_size(LARGER)
        control.set_value("temperature", 0.5 + own["peer"])
        control.evict(1)
    elif batch == LARGER:
        control.checkpoint()
        control.stop()


def contradict(control):
    if control.size == 3:
        control.set_global_batch_size(2 * LARGER)
        control.set_value("temperature", 99.0)


@kf.policy
def contradicted(training):
    return kf.control.always().call(contradict)


@kf.policy
def adapted(training):
    return kf.control.always().call(adapt, training.step, training.global_batch_size)


def main(folder: Path) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.25)
    training = kf.attach(model, optimizer, policies=[adapted(), contradicted()])
    own["peer"] = training.peer
    training.register("temperature", lambda: own["temperature"], lambda value: own.update(temperature=value))

    step = descending(training, model, optimizer)

    for x in training.batches(np.ones((600, 1), np.float32), batch_size=BATCH, epochs=1_000_000, seed=1):
        step(x)
        time.sleep(0.02)
    if not training.left:
        found = {"temperature": own["temperature"], "rate": float(optimizer.learning_rate), "traces": training.traces()}
        (folder / f"{training.peer}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
