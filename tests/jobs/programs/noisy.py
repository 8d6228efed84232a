"""Trains on noisy gradients until their noise has brought a peer, and then until the loss is no number. noisy.py FOLDER

The gradient of a sample is (1/4, 1) or (1/4, -1): its variance is 1 and |G|² is 1/16, so the noise scale is 16 samples,
which are more than two peers have with 4 samples each. On three peers 8 samples are enough, by the table. Once the file
FOLDER/nan is there, a peer that sees it trains on inputs that are no numbers. Each peer leaves FOLDER/PEER.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np

import kungfu as kf
from kungfu.policies import gns_batch, hybrid_scaling, stop_on_nan
from tests.jobs.programs.program_parts import descending

SAMPLES, BATCH = 480, 8


def main(folder: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.125)
    policies = [gns_batch(max_peers=3, decay=0.05, every=20), hybrid_scaling({BATCH: 3}), stop_on_nan(steps=3)]
    training = kf.attach(model, optimizer, policies=policies)

    step = descending(training, model, optimizer)

    x = np.stack([np.full(SAMPLES, 0.25), np.where(np.arange(SAMPLES) % 2, 1.0, -1.0)], axis=1).astype(np.float32)
    for batch in training.batches(x, batch_size=BATCH, epochs=1_000_000, seed=1):
        step(batch * np.float32("nan") if (folder / "nan").exists() else batch)
        time.sleep(0.02)
    found = {"stopped": training.stopped, "rate": float(optimizer.learning_rate), "traces": training.traces()}
    (folder / f"{training.peer}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
