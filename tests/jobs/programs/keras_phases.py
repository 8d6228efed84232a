"""Freeze, compile, fit, unfreeze, compile, fit, of a model in float64: what it came to is left in DIR/PEER.json.

The steps of the job are counted over both fits. A peer that joins in the second one passes through the first.
"""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests.jobs.programs.keras_fit import DECAY, Counting
from tests.jobs.programs.program_parts import (
    await_events,
    await_offer,
    awaited,
    die,
    in_float64,
    leave,
    options,
    own_id,
)

SAMPLES, FEATURES, BATCH, EPOCHS = 60, 4, 12, 2
RATES = (0.05, 0.02)


def data() -> tuple[np.ndarray, np.ndarray]:
    """What is regressed on what."""
    x = np.random.default_rng(0).normal(size=(SAMPLES, FEATURES))
    return x, np.tanh(x.sum(axis=1, keepdims=True))


def build() -> Any:
    """A network of float64, whose first layer is frozen at first."""
    in_float64(1)
    first = keras.layers.Dense(6, activation="tanh", name="first")
    between = keras.layers.Lambda(lambda x: 1.25 * x)
    return keras.Sequential([keras.Input((FEATURES,)), Counting(), first, between, keras.layers.Dense(1, name="last")])


def squares(weight: float) -> Any:
    """A loss of the program's own."""

    def loss(y: Any, predicted: Any) -> Any:
        return weight * keras.ops.mean(keras.ops.square(y - predicted), axis=-1)

    return loss


def compiled(model: Any, phase: int, optimizer: Any = None) -> Any:
    """For the first or the second fit, each with a loss and, unless it is given one, an optimizer of its own."""
    model.get_layer("first").trainable = phase == 1 and optimizer is None
    model.compile(optimizer or keras.optimizers.Adam(RATES[phase]), squares(1.0 + phase), metrics=["mae"])
    return model


class Waiting(keras.callbacks.Callback):
    """Awaits so many offers after some steps of the job; kills the doomed peer in the middle of the second fit.

    The one that is left then awaits the offer of another only if a spare has not come in already.

    ``ready``: By step of the job, how many times spares have to be ready before it goes on.
    ``keep``: The step of the job after which a checkpoint is asked for, and the one that no peer goes on from."""

    def __init__(
        self,
        training: Any,
        record: Path,
        wait: dict[int, int],
        doomed: int | None,
        keep: tuple[int, int],
        ready: dict[int, int],
    ) -> None:
        super().__init__()
        self._training, self._record = training, record
        self._given = lambda: (wait, doomed, keep, ready)  # plain values would come from the checkpoint

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        wait, doomed, (asks, stands), ready = self._given()
        if batch == 2 and doomed == own_id():
            die()
        if self._training.step_number == asks:
            self._training.checkpoint()
        if self._training.step_number == stands:
            awaited(lambda: False, what="end of this job by a signal")
        if times := ready.get(self._training.step_number):
            await_events(self._record, '"state":"ready"', times)
        offers = wait.get(self._training.step_number)
        if offers and (doomed is None or self._training.size == 1):
            await_offer(self._record, self.model.fit.attached.training, offers)


def main() -> None:
    import kungfu as kf

    # Sizes, offers and ready spares by step of the job, the peer that is killed in the second fit, the step of a
    # checkpoint and the last one, and whether there is a schedule that a rule moves.
    given = options(
        results=Path(), record=Path("log/events.jsonl"), schedule={}, wait={}, ready={}, die=None, keep=[-1, -1],
        scheduled=0,
    )  # fmt: skip
    given.results.mkdir(exist_ok=True)
    (x, y), model = data(), build()
    found: dict[str, Any] = {"left": True, "histories": [], "scores": [], "ranks": []}

    @kf.policy
    def quicker(training: Any) -> Any:
        return kf.control.every(4).until(training.step > 5).set_learning_rate(0.1)

    atexit.register(leave, given.results, found)  # a peer that is let go ends inside of fit
    decaying = keras.optimizers.schedules.ExponentialDecay(0.02, 20, 0.5)
    optimizer = keras.optimizers.SGD(decaying) if given.scheduled else None
    for phase in range(2):
        compiled(model, phase, optimizer)
        policies = [kf.policies.schedule(given.schedule, keep="global_batch_size")] if given.schedule else []
        policies += [quicker()] if given.scheduled else []
        training = kf.keras.attach(model, policies=policies, seed=3)
        doomed = given.die if phase == 1 else None
        callbacks = [Waiting(training, given.record, given.wait, doomed, tuple(given.keep), given.ready)]
        if optimizer is None:
            callbacks.insert(0, keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * DECAY))
        history = model.fit(
            x, y, batch_size=BATCH, epochs=EPOCHS, callbacks=callbacks, verbose=0, validation_data=(x[:20], y[:20])
        )
        found["histories"].append(history.history)
        path = given.results / f"{phase}.weights.h5"
        model.save_weights(path)  # the same file by all peers
        model.load_weights(path)
        found["scores"].append(model.evaluate(x, y, verbose=0))
        found["ranks"].append(training.rank)
    found["weights"] = [np.asarray(one).ravel().tolist() for one in model.weights]
    found |= {"left": False, "steps": training.step_number, "rate": float(model.optimizer.learning_rate)}


if __name__ == "__main__":
    sys.exit(main())
