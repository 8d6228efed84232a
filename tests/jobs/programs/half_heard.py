"""Rank 0 dies beside another peer that has just heard of something: half_heard.py HOW RANK FOLDER.

HOW is ``stop``, the barrier at which a rule ends training, or ``last``, that behind the last step: RANK hears of it and
leaves FOLDER/heard; rank 0 ends itself once that is there, and before it answers the other one. ``joined`` is the first
step of a peer that joins, RANK: rank 0 dies before its own next step, and the joiner trains five steps alone. The
program counts its steps in a registered value. Every peer that comes to its end leaves FOLDER/PEER.json.
"""

from __future__ import annotations

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
from tests.jobs.programs.program_parts import descending, die_beside, leave, own_id

HOW, HEARS, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
PEER, HEARD = own_id(), FOLDER / "heard"
LAST_STEP, STOPPED_AT = 40, 9
WITHIN_S = 20.0


def die_between_the_answers() -> None:
    """Peer 0 answers as ever, but does not live to tell everybody that training has ended."""
    answered = PeerService.Arrive

    def arrive(self: PeerService, request: Any, context: Any) -> Any:
        verdict = answered(self, request, context)
        ends = verdict.decision.terms.stopped or (HOW == "last" and not request.begins_view)
        if ends and request.rank != HEARS:
            die_beside(HEARD, within_s=WITHIN_S)
        return verdict

    def wait_for_the_end(*_: Any, **__: Any) -> None:
        time.sleep(WITHIN_S)

    PeerService.Arrive = arrive  # type: ignore[method-assign]  # the fault is here
    JobMembership.finish = wait_for_the_end  # type: ignore[method-assign]  # it dies before it has told its end


@kf.policy
def ending(training: Any) -> Any:
    """Ends training at a step."""
    return kf.control.always().when(training.step >= STOPPED_AT).stop()


POLICIES = {"stop": [ending()], "last": [], "joined": [kf.policies.schedule({3: 2})]}


def main() -> None:
    if PEER == 0 and HOW != "joined":
        die_between_the_answers()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.01)
    training = kf.attach(model, optimizer, policies=POLICIES[HOW])
    counted, own_steps = {"steps": 0}, 0
    training.register("counted", lambda: counted, counted.update)

    step = descending(training, model, optimizer, lambda found, x: tf.reduce_mean(tf.square(found - 1.0)))

    x = np.random.default_rng(0).normal(size=(6 * LAST_STEP, 2)).astype(np.float32)
    for batch in training.batches(x, batch_size=6, epochs=10**6 if HOW == "joined" else 1, seed=0):
        done = step(batch) is not training.SKIPPED
        counted["steps"] += done
        own_steps += done
        if HOW == "joined":
            if PEER == 0:
                time.sleep(0.02)
                if training.size == 2:
                    die_beside(HEARD, within_s=30.0)
            else:
                HEARD.touch()
                if own_steps == 5:
                    break
        elif training.stopped and training.rank == HEARS:
            HEARD.touch()
    if PEER == HEARS:
        HEARD.touch()
    kernel = np.asarray(model.layers[0].kernel).ravel().tolist()
    leave(FOLDER, {"steps": int(optimizer.iterations), "kernel": kernel, "counted": counted["steps"]})


if __name__ == "__main__":
    main()
