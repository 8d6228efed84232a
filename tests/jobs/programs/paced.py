"""A model whose weights stay as they are, trained at a pace of its own: paced.py FOLDER HOW [PEER [STEP SIZE]].

Until the file FOLDER/hurry is there, a step takes some milliseconds more, and a second in the last quarter of the
training, so that the job does not end before the test has seen what it waits for. HOW is

- ``growing``: a hook that asks for nothing is called in every second step;
- ``utility``: beside that hook this policy, since a worth is no literal of the command line: each second sooner is
  worth something, and a peer costs nothing;
- ``straggling``: a step of PEER takes 150 ms more, and one of the others 15 ms; a policy in the shadow measures them;
- ``slowed``: PEER sleeps for 0.6 s before a step while the file FOLDER/slow is there, every other one for 0.05 s, and
  stragglers are replaced. At STEP a schedule asks for SIZE peers; one that joins attaches once FOLDER/come is there;
- ``own-signals``: each step publishes the mean of its batch, which is the loss too. Each peer feeds a price once, after
  its first step, another one than the others; the policy asks for three peers while the price is low;
- ``deciding``: one decision brings a third peer, a batch and a rate; beside it a momentum is set, which each peer at
  last writes into FOLDER/momentum-PEER;
- ``factored``: the rate is multiplied by a factor of the loss in every step, while the size changes; each peer at last
  writes its weight into FOLDER/weight-PEER;
- ``noise``: two samples, with the gradients [3, 0] and [1, 0]; rank 0 writes the noise scales that a hook was told into
  FOLDER/calls.

HOW+fit trains by ``fit`` in executions of four steps, and HOW+micro in micro-batches of five samples at most.
"""

# ruff: noqa: E402  # what is loaded at the top is to be seen
from __future__ import annotations

import sys

print("keras is loaded already:", "keras" in sys.modules)  # of a "loaded" spare

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.policies import replace_stragglers, schedule, utility
from tests.jobs.programs.program_parts import descending, own_id

SAMPLES = tuple((float(one),) for one in range(48))
LATE_S = 1.0
IS_FOUNDER = json.loads(os.environ["KUNGFU_SETTINGS"])["checkpoints"]["founders"]


@dataclass(frozen=True)
class Way:
    """The policies of the job, the seconds of a pause by the number of the peer, and what is trained on."""

    policies: Sequence[kf.Policy]
    pause_s: Callable[[int], float] = lambda peer: 0.02
    epochs: int = 100
    samples: Sequence[Sequence[float]] = SAMPLES
    batch: int = 12


def ignore(control: Any) -> None:
    """Asks for nothing."""


CALLING = kf.Policy("calling", lambda training: kf.control.always().call(ignore))


@kf.policy
def three_while_cheap(training: Any) -> Any:
    price = training.fed("price", unit="dollars/hour")
    mean = kf.ops.weighted_mean(training.published("mean"), training.samples).named("published_mean")
    return (
        kf.control.always().when(price < 2).rescale(3),
        kf.control.always().when(mean > 1e9).stop(),
    )


calls: list[list[float]] = []


@kf.policy
def noise_scale(training: Any) -> Any:
    def note(control: Any, noise: float) -> None:
        calls.append([control.step, noise])

    return kf.control.every(3).call(note, kf.monitor.gradient_noise_scale(training, decay=0.5))


@kf.policy
def in_one_decision(training: Any) -> Any:
    later = kf.control.every(4).after(8)
    return later.rescale(3, batch=24, rate=0.5, over_steps=4), later.set("momentum", 0.75)


@kf.policy
def factor_of_loss(training: Any) -> Any:
    return kf.control.learning_rate(1 / (1 + training.mean_loss**2))


def way_of(how: str, folder: Path, slow: int, sizes: dict[int, int]) -> Way:
    match how:
        case "utility":
            worth = kf.worth.linear(1e6, zero_at_s=1e5)
            return Way([CALLING, utility(worth=worth, price_per_hour=0, max_peers=2, every=5, max_global_batch=18)])
        case "straggling":
            watching = kf.shadow(replace_stragglers(every=1_000_000))
            return Way([watching], lambda peer: 0.15 if peer == slow else 0.015, 1_000_000)
        case "slowed":
            replacing = replace_stragglers(every=10, threshold=0.5, alpha=0.2)
            policies = [schedule(sizes), replacing] if sizes else [replacing]
            return Way(policies, lambda peer: 0.6 if peer == slow and (folder / "slow").exists() else 0.05, 200)
        case "deciding":
            return Way([in_one_decision()], epochs=1_000_000)
        case "factored":
            return Way([factor_of_loss(), schedule({8: 3})], epochs=1_000_000, samples=[(1.0,)] * 48)
        case "noise":
            return Way([noise_scale()], lambda peer: 0.0, 230, ((3.0, 0.0), (1.0, 0.0)), 2)
    return Way([three_while_cheap()] if how == "own-signals" else [CALLING])


class Pausing(keras.callbacks.Callback):
    """Pauses after each execution of ``fit``, unless it shall hurry."""

    def __init__(self, folder: Path, pause_s: float) -> None:
        super().__init__()
        self._paces = lambda: None if (folder / "hurry").exists() else time.sleep(pause_s)  # no value to be agreed

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._paces()


def fitted(folder: Path, way: Way, model: Any, optimizer: Any) -> None:
    """Trains by ``fit``, with the mean of output and input as the loss."""
    samples = np.array(way.samples, np.float32)
    model.compile(optimizer, lambda x, found: keras.ops.mean(found + x), steps_per_execution=4)
    kf.keras.attach(model, policies=way.policies, seed=1)
    callbacks = [Pausing(folder, 4 * way.pause_s(0))]
    model.fit(samples, samples, batch_size=way.batch, epochs=way.epochs, callbacks=callbacks, verbose=0)


def main(folder: Path, how: str, slow: int = 0, *size_at: int) -> None:
    how, _, kind = how.partition("+")
    while size_at and not IS_FOUNDER and not (folder / "come").exists():
        time.sleep(0.05)
    way, is_fed = way_of(how, folder, slow, dict([size_at]) if size_at else {}), how != "own-signals"
    samples = np.array(way.samples, np.float32)
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input(samples.shape[1:]), dense])
    rate = {"learning_rate": 0.5} if how == "factored" else {"learning_rate": 0.0, "momentum": 0.5}
    optimizer = keras.optimizers.SGD(**rate)
    if kind == "fit":
        fitted(folder, way, model, optimizer)
        return left(folder, how, model, optimizer)
    training = kf.attach(model, optimizer, policies=way.policies)

    def loss(found: Any, x: Any) -> Any:
        if how == "own-signals":
            training.publish("mean", tf.reduce_mean(x))
        return tf.reduce_mean(found + x)

    step = descending(training, model, optimizer, loss)
    last_quarter = 3 * way.epochs * len(samples) // way.batch // 4
    most = 5 if kind == "micro" else None
    for x in training.batches(samples, batch_size=way.batch, epochs=way.epochs, seed=1, max_local_batch_size=most):
        if not (folder / "hurry").exists():
            time.sleep(LATE_S if int(optimizer.iterations) > last_quarter else way.pause_s(training.peer))
        if step(x) is not training.SKIPPED and not is_fed:
            is_fed = True
            training.feed("price", 1.5 + training.peer)
    if calls and training.rank == 0:
        (folder / "calls").write_text(json.dumps(calls))
    return left(folder, how, model, optimizer)


def left(folder: Path, how: str, model: Any, optimizer: Any) -> None:
    """Writes the numbers that this peer came to."""
    if how == "deciding":
        (folder / f"momentum-{own_id()}").write_text(str(float(tf.convert_to_tensor(optimizer.momentum))))
    if how == "factored":
        (folder / f"weight-{own_id()}").write_text(float(np.asarray(model.weights[0])[0, 0]).hex())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
