"""A model and policies that name peers: rank 0 is replaced after step 5, and rank 0 of then is evicted later.

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


def main() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.01)
    training = kf.attach(model, optimizer, policies=[newcomers()])

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
