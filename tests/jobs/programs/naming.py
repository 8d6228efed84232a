"""A model and policies that name peers. naming.py DIR [growing]

Rank 0 is replaced after step 5, and rank 0 of then is evicted later. With the word "growing" the job is asked to grow
to three peers in step 5, and while the third is on its way rank 0 is to be replaced.

Each peer leaves DIR/PEER.json: its weights, whether it was let go, and how often its step was traced.
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

RESULTS = Path(sys.argv[1])


@kf.policy
def newcomers(training):
    """Lets the first one go when another has come, then the next one, and ends training."""
    lowest = kf.ops.all_gather(training.rank) == 0
    rescaled = kf.ops.all_reduce(kf.ops.where(training.rescale_seconds > 0, 1.0, 0.0), "sum")
    since = kf.ops.where(rescaled > 0, 1.0, 0.0).cumulative()  # steps since the exchange, which some peer has seen
    return (
        kf.control.always().when(training.step == 5).replace(lowest),
        kf.control.always().when(since == 10).evict(lowest),
        kf.control.always().when((since >= 30) | (training.step >= 1000)).stop(),
    )


@kf.policy
def exchanged_while_growing(training):
    """Asks for a third peer, and for another one in place of rank 0 once the third is on its way; ends training."""
    lowest, joined = kf.ops.all_gather(training.rank) == 0, kf.ops.where(training.size == 3, 1.0, 0.0).cumulative()
    is_growing = training.pending & ~training.barrier_due & (training.size == 2)
    return (
        kf.control.always().after(4).rescale(3),
        kf.control.always().when(is_growing).replace(lowest),
        kf.control.always().when((joined >= 10) | (training.step >= 1000)).stop(),
    )


def main() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.01)
    training = kf.attach(
        model, optimizer, policies=[exchanged_while_growing() if "growing" in sys.argv else newcomers()]
    )

    @training.step
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for x in training.batches(np.ones([100_000, 1], np.float32), batch_size=6, epochs=1, seed=0):
        time.sleep(0.03)
        step(x)
    RESULTS.mkdir(exist_ok=True)
    weights = np.asarray(model.weights[0]).tobytes().hex()
    told = {"weights": weights, "left": training.left, "stopped": training.stopped, "traces": training.traces()}
    (RESULTS / f"{training.peer}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
