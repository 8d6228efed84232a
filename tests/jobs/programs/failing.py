"""A program that fails in the way that it is told: failing.py HOW [SIZE FILE].

With a size it first asks for so many peers, and only those that join later fail. With a file the others train slowly
until it is there.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path

HOW = sys.argv[1]
SIZE, FILE = (int(sys.argv[2]), Path(sys.argv[3])) if len(sys.argv) > 3 else (0, Path())
PEER = json.loads(os.environ["KUNGFU_SETTINGS"])["peer"]
FAILS = PEER >= 2 if SIZE else True

if HOW == "import" and FAILS:
    raise ImportError("no module of that name, on purpose")
if HOW == "never-ready" and FAILS:
    time.sleep(600)
if HOW == "no-attach":
    sys.exit()
if HOW == "one-thread":
    os.environ["TF_NUM_INTEROP_THREADS"] = "1"

import keras  # noqa: E402 - the ways to fail above need no TensorFlow
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import kungfu as kf  # noqa: E402
from kungfu.policies import schedule  # noqa: E402
from kungfu.training.state.snapshot import StateSnapshot  # noqa: E402
from tests.jobs.programs.program_parts import descending  # noqa: E402

if HOW == "before-attach":
    kf.control.every(0)


@kf.policy
def local_target(training):
    """Asks for a size that every peer computes for itself."""
    return kf.control.always().rescale(training.loss)


@kf.policy
def standing_still(training):
    """Peer 0 stops itself in the barrier after the sixth step, where it is to lead the others."""

    def stop(control) -> None:
        if PEER == 0:
            os.kill(os.getpid(), 19)
            threading.Event().wait()  # another thread may take the signal, and this one would go on for a moment

    return kf.control.every(6).call(stop)


@kf.policy
def keeping(training):
    """One checkpoint."""
    return kf.control.always().when(training.step == 5).checkpoint()


def die_writing() -> None:
    """Peer 0 does not live to write a checkpoint down."""
    if PEER == 0:
        StateSnapshot.write = lambda *_: os.kill(os.getpid(), 9)  # the fault is here


def end_slowly() -> None:
    """Peer 1 ends when there is a file of this name beside the other one."""
    while PEER == 1 and not FILE.with_name("end").exists():
        time.sleep(0.02)


POLICIES = {
    "killed-writing": [keeping()],
    "stopped-in-barrier": [standing_still()],
    "local-target": [local_target()],
    "killed-in-step": [schedule({5: 3})],  # fires in the fifth step: the barrier is in the sixth
    "two-targets": [schedule({10: 1})],
}


def main() -> None:
    if HOW == "end-slowly":  # registered before attach: Python does it after what attach registers
        atexit.register(end_slowly)
    averaged = [] if HOW == "stopped-in-barrier" else [keras.layers.BatchNormalization()]  # else a message comes first
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), *averaged])
    optimizer = keras.optimizers.SGD(0.01)
    training = kf.attach(model, optimizer, policies=POLICIES.get(HOW, [schedule({5: SIZE})] if SIZE else []))
    if HOW == "no-step":
        return
    if HOW in ("killed-writing", "killed-when-asked"):
        die_writing()

    def die(done) -> None:
        if training.rank == 1 and int(done) == 6:
            os.kill(os.getpid(), 9)

    def then(x) -> None:
        if HOW == "killed-in-step":
            tf.py_function(die, [optimizer.iterations.value], [])

    step = descending(training, model, optimizer, then=then)
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    batch_size = 1 if HOW == "small-batch" else 10
    slow = ("endless", "stopped-in-barrier", "killed-writing", "killed-when-asked")
    epochs = 10**6 if HOW in ("raise", "break", "killed-in-step", *slow) else 150
    for batch in training.batches(x, batch_size=batch_size, epochs=epochs, seed=0):
        step(batch)
        if PEER == 1 and int(optimizer.iterations) == 5 and HOW in ("raise", "end-slowly"):
            raise ValueError("the fifth step was wrong, on purpose")
        if PEER == 1 and int(optimizer.iterations) == 5 and HOW == "break":
            break
        if HOW in slow:
            time.sleep(0.05)
        elif not FILE.exists():
            time.sleep(0.5)  # the steps must last longer than anything that is waited for meanwhile


if __name__ == "__main__":
    main()
