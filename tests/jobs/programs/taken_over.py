"""Partitions that are taken over by peers that read for longer than a step may wait.

Peer 3 is killed in the middle of its partition. Whoever takes that over reads to its place for longer than the deadline
and is killed there, and whoever takes it over then reads until the job was asked for another peer, and for longer than
the deadline too. That peer comes before the last step. What a peer came to is left in RESULTS/PEER.json.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.runtime.api import shuffled
from tests.jobs.programs import keras_fit
from tests.jobs.programs.program_parts import (
    await_events,
    await_offer,
    awaited,
    descending,
    die,
    leave,
    options,
    own_id,
)

SEED, DIES_AFTER, JOINS_AFTER = 3, 3, 6
NAMES = [str(first) for first in range(0, keras_fit.SAMPLES, keras_fit.PARTITION)]
HELD_BY_3 = NAMES[int(shuffled(len(NAMES), seed=SEED, epoch=0)[3])]


def is_first(marker: Path) -> bool:
    """Whether nobody has left this marker before."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def reading(given: Any) -> Any:
    """What reads a partition, slowly where it was taken over."""

    def read(name: str) -> Iterator[Any]:
        is_taken_over = name == HELD_BY_3 and (given.results / "dead").exists()
        for row, sample in enumerate(keras_fit.rows_from(name)):
            if is_taken_over and row == 4:
                linger(given)
            yield sample

    return read


def linger(given: Any) -> None:
    """On the way to its place: the first one that comes here ends here, and the second one is late."""
    began, dies = time.monotonic(), is_first(given.results / "killed")
    if not dies and not is_first(given.results / "reads"):
        return
    if not dies:
        await_events(given.record, '"state":"accepted"')
    awaited(lambda: time.monotonic() > began + given.deadline + 2.0, what="the deadline")
    if dies:
        die()


def after_step(given: Any, training: Any, done: int) -> None:
    """Ends peer 3 after a step, and waits after another one until a joiner comes in with the next."""
    if done == DIES_AFTER and own_id() == 3:
        (given.results / "dead").touch()
        die()
    if done == JOINS_AFTER:
        await_offer(given.record, training)


def main() -> None:
    import kungfu as kf

    given = options(results=Path(), record=Path("log/events.jsonl"), deadline=0.0)
    given.results.mkdir(exist_ok=True)
    data = kf.data.partitions(NAMES, reading(given), counts=[keras_fit.PARTITION] * len(NAMES))
    model, counts = keras_fit.build()
    training = kf.attach(model, model.optimizer)
    training.metrics(counts)

    def loss(found: Any, x: Any, y: Any) -> Any:
        counts.update_state(y["number"], found["number"])
        return tf.reduce_mean((found["value"] - y["value"]) ** 2)

    step = descending(training, model, model.optimizer, loss)
    for x, y in training.batches(data, batch_size=keras_fit.BATCH, epochs=1, seed=SEED):
        step(x, y)
        after_step(given, training, training.step_number)
    seen = np.diag(np.asarray(counts.total_cm)).tolist()
    weights = [np.asarray(one).ravel().tolist() for one in model.weights]
    leave(given.results, {"seen": seen, "weights": weights, "passed": data.passed})


if __name__ == "__main__":
    main()
