"""A program that ends in the way that it is told, on some peers, after their fifth step: exits.py HOW PEER... [STEPS].

The others train until the file named by KUNGFU_TEST_UNTIL is there, or to their end without it. A slow one ends when
the file named by KUNGFU_TEST_STAYS_UNTIL is there.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np

import kungfu as kf
from kungfu.errors import UsageError
from tests.jobs.programs.program_parts import descending, own_id

HOW, PEERS = sys.argv[1], {int(word) for word in sys.argv[2:]}
PEER = own_id()
UNTIL = Path(os.environ.get("KUNGFU_TEST_UNTIL", "/"))


def main() -> None:
    if HOW == "slow" and PEER in PEERS:  # registered before attach: Python does it after what attach registers
        atexit.register(stay)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01)
    training = kf.attach(model, optimizer)

    step = descending(training, model, optimizer)

    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    for batch in training.batches(x, batch_size=10, epochs=500, seed=0):
        if step(batch) is training.SKIPPED:
            continue
        if PEER in PEERS and int(optimizer.iterations) >= 5 and not leaves_loop():
            break
        if not UNTIL.exists():
            time.sleep(0.1)


def stay() -> None:
    while not Path(os.environ["KUNGFU_TEST_STAYS_UNTIL"]).exists():
        time.sleep(0.02)


def leaves_loop() -> bool:
    """Ends the program as it was told to; ``False`` if the loop is to be left first."""
    if HOW == "usage":
        raise UsageError("this peer's own file is missing, on purpose")
    if HOW in ("raise", "slow"):
        raise ValueError("the fifth step was wrong, on purpose")
    if HOW == "crash":
        os._exit(2)
    if HOW.isdecimal():
        sys.exit(int(HOW))
    return HOW != "break"


if __name__ == "__main__":
    main()
