"""A linear model whose peers average their models every few steps, while one joins, one is killed and one leaves.

Each peer writes a line of DIR/PEER.jsonl after each step that it has done: the number of the step, the samples that it
trained on, and its weights and momenta after the step. With ``--steered 1`` nothing happens by itself: peer N ends in a
barrier once DIR/barrier-N is there, and between the two messages of an average once DIR/average-N is there; training
ends once DIR/hurry is there.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.control import average_models
from tests.jobs.programs.kept import keeping
from tests.jobs.programs.program_parts import descending, die, options, own_id

FEATURES, SAMPLES, RATE, MOMENTUM = 3, 100, 0.02, 0.5
SEED = 1  # of the order of the samples
KEPT_EVERY = 12  # steps; the job takes at least 60
LESS_AFTER, LESS = 20, 4  # from this step on, fewer steps between two averages


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, and the number of each sample."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]]) + draw.normal(size=(SAMPLES, 1))  # no weights fit all samples
    return x, y.astype(np.float32), np.arange(SAMPLES)


@kf.policy
def following(training: Any) -> Any:
    """Asks for the number of peers that rank 0 is told, once."""
    peers = training.fed("peers")
    return kf.control.always().when(peers.is_new).rescale(kf.ops.clip(peers, 1, 3))


@kf.policy
def closer(training: Any) -> Any:
    """Averages more often from a step on."""
    return kf.control.always().after(LESS_AFTER).synchronise(every=LESS)


@kf.policy
def dying(training: Any, results: Path) -> Any:
    """Calls a hook in which a peer ends as told."""

    def look(control: Any) -> None:
        if (results / f"barrier-{own_id()}").exists():
            die()

    return kf.control.every(3).call(look)


def main() -> None:
    given = options(results=Path(), every=5, steered=0)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    asked = [dying(given.results)] if given.steered else [following(), closer()]
    policies = [*asked, keeping(every=KEPT_EVERY)]
    training = kf.attach(model, optimizer, policies=policies, sync=average_models(every=given.every))
    given.results.mkdir(exist_ok=True)
    lines = (given.results / f"{own_id()}.jsonl").open("w", buffering=1)

    def loss(found: Any, x: Any, y: Any, index: Any) -> Any:
        return tf.reduce_mean(tf.square(found - y))

    def look() -> None:
        if training._run.models.is_synchronising and (given.results / f"average-{own_id()}").exists():
            die()

    def then(x: Any, y: Any, index: Any) -> Any:
        if given.steered:
            tf.py_function(look, [], [])
        return index

    step = descending(training, model, optimizer, loss, then)
    size, at_size, most = 2, 0, 2
    if not given.steered:
        training.feed("peers", 3)
    for batch in training.batches(data(), batch_size=8, epochs=1_000_000, seed=SEED):
        index = step(*batch)
        if index is training.SKIPPED:
            continue
        parts = model.weights[0], optimizer.variables[-1]
        kept = [np.asarray(one).ravel().tolist() for one in parts]
        lines.write(json.dumps([training.step_number, index.numpy().tolist(), *kept]) + "\n")
        time.sleep(0.02)
        if given.steered:
            if (given.results / "hurry").exists():
                training.stop("seen enough")
            continue
        size, at_size = training.size, at_size + 1 if training.size == size else 0
        most = max(most, size)
        # The last average was three steps ago: what this peer has done since is lost with it.
        since = training.step_number - training._run.models._averaged_at
        if training.peer == 1 and size == 3 and at_size >= 12 and since == 3:
            die()
        if (most, size, at_size) == (3, 2, 20):
            training.feed("peers", 1)
        if (size, at_size) == (1, 12):
            training.stop("seen enough")


if __name__ == "__main__":
    main()
