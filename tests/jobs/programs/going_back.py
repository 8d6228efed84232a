"""A network that goes back to a checkpoint: as a peer joins, as rank 0 is killed over it, and as training stops.

Each peer appends to DIR/PEER.jsonl, step by step: the steps done, the samples of its slice, and the weights with which
the step began; behind the last one the weights that it ended with, and a checksum of the slots too.
"""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.training.state.checkpoint_manager import CheckpointManager
from tests.jobs.programs.program_parts import await_events, await_offer, descending, die, digest, options

SAMPLES = 4000


@kf.policy
def going_back(training):
    """Keeps the state after step 6; goes back as a third peer joins, again ten steps later, and to end training."""
    at, joined = kf.control.always(), training.view_steps == 10
    last = at.when((training.view_steps >= 10) & (training.size == 2) & (training.view > 1))
    return (
        at.when(training.step == 5).checkpoint("good"),
        kf.control.every(7).checkpoint(),
        at.when(training.step == 8).rescale(3),
        at.when(training.change_due & (training.target_size == 3)).restore("good"),
        at.when(joined & (training.size == 3)).restore("good"),
        last.restore("good"),
        last.stop(),
    )


def main() -> None:
    given = options(results=Path(), record=Path())
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    training = kf.attach(model, optimizer, policies=[going_back()])
    read, reads, began = CheckpointManager.read_named, [], []

    def read_named(manager, name):
        reads.append(name)
        if training.peer == 0 and len(reads) == 2:
            await_events(given.record, '"event":"restored"')  # a peer that dies takes its latest events with it
            die()
        return read(manager, name)

    CheckpointManager.read_named = read_named  # the fault is here: the others wait for what rank 0 has read

    def loss(found, x, index):
        began[:] = [tf.concat([tf.reshape(one, [-1]) for one in model.trainable_variables], axis=0)]
        return tf.reduce_mean(tf.square(found - x))

    step = descending(training, model, optimizer, loss, lambda x, index: (index, optimizer.iterations.value, began[0]))
    data = (np.linspace(0, 1, SAMPLES, dtype=np.float32).reshape(-1, 1), np.arange(SAMPLES))
    given.results.mkdir(exist_ok=True)
    with (given.results / f"{training.peer}.jsonl").open("w") as file:
        for x, index in training.batches(data, batch_size=20, epochs=1, seed=1):
            done = step(x, index)
            if done is not training.SKIPPED:
                samples, steps, weights = (one.numpy().tolist() for one in done)
                print(json.dumps([steps, samples, weights]), file=file, flush=True)
            if training.step_number == 12 and training.size == 2:
                await_offer(given.record, training)
        ended = [float(number) for one in model.trainable_variables for number in np.ravel(one)]
        print(json.dumps({"weights": ended, "all": digest([*model.weights, *optimizer.variables])}), file=file)


if __name__ == "__main__":
    main()
