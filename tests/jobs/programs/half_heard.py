"""Rank 0 dies between its answers at the barrier that ends training: half_heard.py HOW RANK FOLDER.

HOW is ``stop``, the barrier at which a rule ends training, or ``last``, that behind the last step. RANK hears of it and
leaves FOLDER/heard; rank 0 ends itself once that is there, and before it answers the other one. Every peer that comes
to its end leaves FOLDER/PEER.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.runtime.peer.membership import JobMembership
from kungfu.runtime.peer.peer_service import PeerService
from tests.jobs.programs.program_parts import descending, die_beside, own_id

HOW, HEARS, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
PEER = own_id()
LAST_STEP, STOPPED_AT = 40, 9
WITHIN_S = 20.0


def die_between_the_answers() -> None:
    """Peer 0 answers as ever, but does not live to tell everybody that training has ended."""
    answered = PeerService.Arrive

    def arrive(self: PeerService, request: Any, context: Any) -> Any:
        verdict = answered(self, request, context)
        ends = verdict.decision.terms.stopped or (HOW == "last" and not request.begins_view)
        if ends and request.rank != HEARS:
            die_beside(FOLDER / "heard", within_s=WITHIN_S)
        return verdict

    def wait_for_the_end(*_: Any, **__: Any) -> None:
        time.sleep(WITHIN_S)

    PeerService.Arrive = arrive  # type: ignore[method-assign]  # the fault is here
    JobMembership.finish = wait_for_the_end  # type: ignore[method-assign]  # it dies before it has told its end


@kf.policy
def ending(training: Any) -> Any:
    """Ends training at a step."""
    return kf.control.always().when(training.step >= STOPPED_AT).stop()


def main() -> None:
    if PEER == 0:
        die_between_the_answers()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.01)
    training = kf.attach(model, optimizer, policies=[ending()] if HOW == "stop" else [])

    step = descending(training, model, optimizer, lambda found, x: tf.reduce_mean(tf.square(found - 1.0)))

    x = np.random.default_rng(0).normal(size=(6 * LAST_STEP, 2)).astype(np.float32)
    for batch in training.batches(x, batch_size=6, epochs=1, seed=0):
        step(batch)
        if training.stopped and training.rank == HEARS:
            (FOLDER / "heard").touch()
    if training.peer == HEARS:
        (FOLDER / "heard").touch()
    found = {"steps": int(optimizer.iterations), "kernel": np.asarray(model.layers[0].kernel).ravel().tolist()}
    (FOLDER / f"{PEER}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
