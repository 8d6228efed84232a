"""Two fits whose peers average their models every few steps: the data of one end early, in the other one peers change.

Each peer writes a line of DIR/PEER.jsonl after each step: the number of the fit and of the step, and its weights and
momenta after the step; what it came to is left in DIR/PEER.json. One peer, of ``--dies``, is killed in an average.

With ``--epochs`` the other fit has this many epochs, in which nothing changes, and a checkpoint is kept. With
``--crash`` the first peers are killed after this step, once the checkpoint is there.
"""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.control import average_models
from tests.jobs.programs.kept import keeping
from tests.jobs.programs.local_steps import FEATURES, LESS, MOMENTUM, RATE, closer, data, following
from tests.jobs.programs.program_parts import await_offer, die, in_float64, leave, options, own_id

BATCH, PER_EPOCH, READ = 8, 7, 11  # in the first fit: steps of an epoch, and batches that there are
SEED, HELD_OUT, SHRINKS = 3, 20, 0.98
KEPT_EVERY = 30  # steps


def ending_early() -> Iterator[Any]:
    """Batches in the order of the samples; they end in the middle of the second epoch."""
    x, y, _ = data()
    for start in range(0, READ * BATCH, BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


class Mortal(keras.optimizers.SGD):
    """Its peer is killed in an update, which in a step that averages lies between the two messages of the step."""

    is_doomed = False

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        tf.py_function(lambda: die() if Mortal.is_doomed else None, [], [])
        super().apply(grads, trainable_variables)


class Acting(keras.callbacks.Callback):
    """Writes what this peer has done, and lets one join, one be killed and one leave; then it ends training."""

    def __init__(self, folder: Path, fit: int, *, dies: int | None, crash: int) -> None:
        super().__init__()
        lines = (folder / f"{own_id()}.jsonl").open("a", buffering=1)
        size, at_size, most, steps = 2, 0, 2, 0

        def act() -> None:
            nonlocal size, at_size, most, steps
            model, training = self.model, self.model.fit.attached.training
            parts = model.weights[0], model.optimizer.variables[-1]
            kept = [np.asarray(one).ravel().tolist() for one in parts]
            lines.write(json.dumps([fit, training.step_number, *kept]) + "\n")
            size, at_size = training.size, at_size + 1 if training.size == size else 0
            most, steps = max(most, size), steps + 1
            if dies is not None and own_id() < 2:
                change(model, training)
            if training.step_number == crash and own_id() < 2:
                while not [*Path("log/checkpoints").glob("step-*")]:
                    time.sleep(0.01)
                die()

        def change(model: Any, training: Any) -> None:
            # The last average was some steps ago.
            since = training.step_number - training._run.models._averaged_at
            if steps == 3:
                training.feed("peers", 3)
            if steps == 12:
                await_offer(Path("log/events.jsonl"), training)
            if own_id() == dies and size == 3 and at_size >= 12 and since == LESS - 1:
                Mortal.is_doomed = True
            if (most, size, at_size) == (3, 2, 20):
                training.feed("peers", 1)
            if size == 1 and at_size >= 12 and since == 2 and int(training._run.graph_state.progress.offset) < 50:
                model.stop_training = True
            time.sleep(0.01)

        self._act = act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._act()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Rank 0's word counts, and all have its weights then.
        if self.model.fit.attached.training.rank == 0:
            self.model.weights[0].assign(self.model.weights[0] * SHRINKS)


def main() -> None:
    given = options(results=Path(), every=5, epochs=0, dies=1, crash=0)
    given.results.mkdir(exist_ok=True)
    in_float64(0)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(Mortal(RATE, momentum=MOMENTUM), "mse", metrics=["mae"])
    sync = average_models(every=given.every)
    policies = [keeping(every=KEPT_EVERY) if given.epochs else following(), closer()]
    kf.keras.attach(model, policies=policies, seed=SEED, sync=sync)
    x, y, _ = data()
    found: dict[str, Any] = {"histories": []}
    atexit.register(lambda: leave(given.results, found))  # a peer that is let go ends inside of fit

    def fit(number: int, *batches: Any, **more: Any) -> None:
        saving = keras.callbacks.ModelCheckpoint(
            given.results / f"{number}-{{epoch}}.weights.h5", save_weights_only=True
        )
        dies = given.dies if number and not given.epochs else None
        acting = Acting(given.results, number, dies=dies, crash=given.crash)
        callbacks, held_out = [saving, acting], (x[:HELD_OUT], y[:HELD_OUT])
        history = model.fit(*batches, callbacks=callbacks, validation_data=held_out, verbose=0, **more)
        found["histories"].append(history.history)

    fit(0, ending_early(), steps_per_epoch=PER_EPOCH, epochs=3)
    fit(1, x, y, batch_size=BATCH, epochs=given.epochs or 1000)
    found["traces"] = model.fit.attached.training.traces()


if __name__ == "__main__":
    main()
