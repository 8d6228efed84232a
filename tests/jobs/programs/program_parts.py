"""The parts that programs of jobs share: the options, the number of the peer, the step, its results, and waits."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

DEADLINE_S = 200.0


def own_id() -> int:
    """The id of this peer, before and after it is attached; 0 alone."""
    return int(json.loads(os.environ.get("KUNGFU_SETTINGS", '{"peer": 0}'))["peer"])


def die() -> None:
    """Ends this peer where it stands."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_beside(path: Path, *, within_s: float) -> None:
    """Ends this peer once a file is there, or after so many seconds."""
    until = time.monotonic() + within_s
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    die()


def options(**defaults: Any) -> argparse.Namespace:
    """The options of the command line, by their names with these defaults.

    Each is of the type of its default, if that is a number, a text or a path; the others are given as JSON, in which
    the keys of tables are whole numbers.
    """

    def read(text: str) -> Any:
        found = json.loads(text)
        return {int(key): value for key, value in found.items()} if isinstance(found, dict) else found

    parser = argparse.ArgumentParser()
    for name, default in defaults.items():
        kind = type(default) if isinstance(default, int | float | str | Path) else read
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    return parser.parse_args()


def leave(folder: Path, found: Any) -> None:
    """Writes what this peer came to into PEER.json of a folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"{own_id()}.json").write_text(json.dumps(found))


def digest(values: Iterable[Any]) -> int:
    """A checksum of variables or arrays, bit by bit."""
    return zlib.crc32(b"".join(np.asarray(one).tobytes() for one in values))


def in_float64(seed: int) -> None:
    """Keras draws from this seed, and computes in float64."""
    keras.utils.set_random_seed(seed)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def descending(
    training: Any,
    model: Any,
    optimizer: Any,
    loss: Callable[..., Any] = lambda found, x: tf.reduce_mean(found),
    then: Callable[..., Any] = lambda *batch: None,
) -> Callable[..., Any]:
    """The usual step: down the gradient of a loss of what the model makes of a batch, by default its mean.

    The loss is also given the batch; ``then`` is what the step does with it at its end, and gives.
    """

    @training.step
    def step(x: Any, *others: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(model(x, training=True), x, *others)
        gradients = training.average(tape.gradient(value, model.trainable_variables), loss=value)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return then(x, *others)

    return step


def awaited(look: Callable[[], bool], *, what: str) -> None:
    """Until it is there."""
    deadline = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline, f"no {what} within {DEADLINE_S:g} s"
        time.sleep(0.05)


def await_events(record: Path, text: str, count: int = 1) -> None:
    """Until the record has this text, written without spaces, so many times."""
    awaited(lambda: record.read_text().replace(" ", "").count(text) >= count, what=f"{text}, number {count}")


def await_offer(record: Path, training: Any, count: int = 1, kind: str = "offered") -> None:
    """Until so many such events are recorded, and rank 0 has heard of it: joiners come in behind the next step."""
    await_events(record, f'"event":"{kind}"', count)
    changes = training._run.graph_state.posts.changes
    if training.rank == 0:
        awaited(lambda: int(changes.asked) > int(changes.served), what="an offer")
