"""Keras' ``fit`` in float64, with one line of kungfu: what it came to is left in DIR/PEER.json.

Of two outputs one is regressed, and the other is the number of the sample, of which a confusion table counts how often
the job has trained on it in an epoch: a metric, whose state adds up over the peers.

With ``--losses 1`` the losses are divided by other things than samples. Beside them there are metrics that do not add
up, several steps per execution, and a last step of an epoch with one sample: the slices of all peers but one are empty.
"""

from __future__ import annotations

import atexit
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.jobs.programs.program_parts import await_offer, die, in_float64, leave, options, own_id

SAMPLES, FEATURES, BATCH = 90, 4, 12
GIVEN = 10  # the batch of the generator
PARTITION = 15
RATE, DECAY = 0.02, 0.9
UNEVEN, WORDS = 85, 5  # samples and words of the losses: the last step of an epoch has one sample
PER_EXECUTION = 3


def data() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What is regressed on what; the last column numbers the samples."""
    draw = np.random.default_rng(0)
    x, number = draw.normal(size=(SAMPLES, FEATURES)), np.arange(SAMPLES, dtype=np.float64)[:, None]
    return np.concatenate([x, number], axis=1), {"value": np.tanh(x.sum(axis=1, keepdims=True)), "number": number}


def dataset(seed: int = 5) -> Any:
    """The same, as a Dataset that shuffles anew each time it is read; to be made after the model."""
    return tf.data.Dataset.from_tensor_slices(data()).shuffle(40, seed=seed).batch(BATCH)


class Batches(keras.utils.PyDataset):
    """The same, by index, in an order that the dataset draws anew in each epoch."""

    def __init__(self, seed: int = 5) -> None:
        super().__init__(workers=2)
        self._draw, self._order = np.random.default_rng(seed), np.arange(SAMPLES)

    def __len__(self) -> int:
        return -(-SAMPLES // BATCH)

    def __getitem__(self, index: int) -> Any:
        x, y = data()
        rows = self._order[index * BATCH : (index + 1) * BATCH]
        return x[rows], {name: one[rows] for name, one in y.items()}

    def on_epoch_end(self) -> None:
        self._order = self._draw.permutation(SAMPLES)


def generator(seed: int = 5, slow: float = 0.0) -> Iterator[Any]:
    """The same without an end, in batches of `GIVEN`, in an order that is drawn anew in each pass.

    Of the first pass each batch takes ``slow`` seconds.
    """
    (x, y), draw = data(), np.random.default_rng(seed)
    while True:
        order = draw.permutation(SAMPLES)
        for start in range(0, SAMPLES, GIVEN):
            rows = order[start : start + GIVEN]
            time.sleep(slow)
            yield x[rows], {name: one[rows] for name, one in y.items()}
        slow = 0.0


def rows_from(first: str) -> Iterator[Any]:
    """The samples of a partition, which is called like its first one."""
    x, y = data()
    for row in range(int(first), int(first) + PARTITION):
        yield x[row], {name: one[row] for name, one in y.items()}


def given_data(kind: str, seed: int = 5, slow: float = 0.0) -> dict[str, Any]:
    """Arguments of ``fit``."""
    if kind == "arrays":
        x, y = data()
        return {"x": x, "y": y, "batch_size": BATCH}
    if kind == "partitions":
        import kungfu as kf

        names = [str(first) for first in range(0, SAMPLES, PARTITION)]
        return {"x": kf.data.partitions(names, rows_from, counts=[PARTITION] * len(names)), "batch_size": BATCH}
    if kind == "generator":
        return {"x": generator(seed, slow), "steps_per_epoch": SAMPLES // GIVEN}
    return {"x": dataset(seed) if kind == "dataset" else Batches(seed)}


class Counting(keras.layers.Layer):
    """Counts the samples that are trained on, in a weight, and sums them up."""

    def __init__(self) -> None:
        super().__init__()
        more: dict[str, Any] = {"initializer": "zeros", "trainable": False, "aggregation": "sum"}
        self.seen = self.add_weight(shape=(), dtype="int64", name="seen", **more)
        self.total = self.add_weight(shape=(), name="total", **more)

    def call(self, x: Any, training: bool | None = None) -> Any:
        if training:
            self.seen.assign_add(keras.ops.cast(keras.ops.shape(x)[0], "int64"))
            self.total.assign_add(keras.ops.sum(x))
        return x


def build() -> tuple[Any, Any]:
    """A network of float64, compiled, and the metric that counts the samples."""
    in_float64(1)
    given = keras.Input((FEATURES + 1,))
    hidden = keras.layers.Dense(6, activation="tanh")(Counting()(given[:, :FEATURES]))
    value = keras.layers.Dense(1, name="value")(hidden)
    number = keras.layers.Identity(name="number")(given[:, FEATURES:])
    model = keras.Model(given, {"value": value, "number": number})
    counts = keras.metrics.MeanIoU(SAMPLES, name="seen")
    metrics = {"value": ["mae"], "number": [counts]}
    model.compile(keras.optimizers.Adam(RATE), {"value": "mse", "number": None}, metrics=metrics)
    return model, counts


# ---- losses of every kind --------------------------------------------------------------------------------------------


class Largest(keras.metrics.Metric):
    """The largest prediction."""

    start = -np.inf

    def __init__(self, name: str = "largest") -> None:
        super().__init__(name=name)
        self.largest = self.add_variable((), lambda shape, dtype: self.start, name="largest")

    def reset_state(self) -> None:
        self.largest.assign(self.start)

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(predicted)))

    def result(self) -> Any:
        return 1.0 * self.largest  # a number of its own: what Keras logs would follow the variable into validation


class Recent(Largest):
    """A moving mean of the targets."""

    start = 0.0

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.largest.assign(0.9 * self.largest + 0.1 * keras.ops.mean(y))


class Squares(keras.metrics.Metric):
    """The squares of the targets, summed, and their number: as a program that does not say so to kungfu."""

    def __init__(self, name: str = "squares") -> None:
        super().__init__(name=name)
        self.squares = self.add_variable((2,), "zeros", name="squares")
        self.count = self.add_variable((), "zeros", dtype="int32", name="count")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.squares.assign(self.squares + keras.ops.stack([keras.ops.sum(y**2), keras.ops.sum(y)]))
        self.count.assign(self.count + keras.ops.size(y))

    def result(self) -> Any:
        return self.squares[0] / keras.ops.cast(self.count, self.squares.dtype) + self.squares[1]


def changes(before: list[Any], after: list[Any]) -> list[Any]:
    """The sum of what the peers have added."""
    return [old + tf.reduce_sum(new - old, axis=0) for old, new in zip(before, after, strict=True)]


COMBINE = {"largest": "max", "recent": "mean", "squares": changes}


def data_of_losses() -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """As ``data``, with words, of which those that are 0 are masked, and with weights of samples."""
    draw = np.random.default_rng(1)
    x, y = data()
    words = draw.integers(0, 6, (SAMPLES, WORDS)) * (np.arange(WORDS) < draw.integers(0, WORDS + 1, (SAMPLES, 1)))
    spoken = draw.normal(size=(SAMPLES, WORDS, 1))
    targets = {**y, "weighted": y["value"] ** 2, "spoken": spoken, "kept": np.zeros((SAMPLES, 6))}
    weights = {name: np.ones(SAMPLES) for name in targets} | {"spoken": draw.uniform(0, 3, (SAMPLES, WORDS))}
    weights["weighted"], weights["value"] = draw.uniform(0, 3, SAMPLES), draw.uniform(0, 3, SAMPLES)
    x = np.concatenate([x, words], axis=1)[:UNEVEN]
    return x, *({name: one[:UNEVEN] for name, one in group.items()} for group in (targets, weights))


def build_losses() -> tuple[Any, Any]:
    """A network whose losses are divided by 1, by weights, by positions that are not masked; and regularized."""
    in_float64(1)
    given = keras.Input((FEATURES + 1 + WORDS,))
    dense = keras.layers.Dense(6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01))
    hidden = dense(given[:, :FEATURES])
    spoken = keras.layers.Embedding(6, 3, mask_zero=True)(keras.ops.cast(given[:, FEATURES + 1 :], "int32"))
    outputs = {
        "value": keras.layers.Dense(1, name="value")(hidden),
        "weighted": keras.layers.Dense(1, name="weighted")(hidden),
        "spoken": keras.layers.Dense(1, name="spoken")(spoken),
        "number": keras.layers.Identity(name="number")(given[:, FEATURES : FEATURES + 1]),
        "kept": keras.layers.BatchNormalization(center=False, scale=False, name="kept")(hidden),
    }
    model, counts = keras.Model(given, outputs), keras.metrics.MeanIoU(UNEVEN, name="seen")
    own = ["mae", Largest(), Recent("recent")]
    square = keras.losses.MeanSquaredError
    losses = {"value": square("sum"), "weighted": square("mean_with_sample_weight"), "spoken": square()}
    model.compile(
        keras.optimizers.SGD(RATE, momentum=0.9), {**losses, "number": None, "kept": None},
        loss_weights={"value": 0.05, "weighted": 1.0, "spoken": 0.5, "number": None, "kept": None},
        metrics={"value": own, "weighted": Squares(), "spoken": "mae", "number": counts},
        weighted_metrics={"weighted": ["mae"]}, steps_per_execution=PER_EXECUTION,
    )  # fmt: skip
    return model, counts


# ---- callbacks -------------------------------------------------------------------------------------------------------


class Told(keras.callbacks.Callback):
    """What callbacks are told. What is found is plain, so that a peer that joins is given it.

    ``wait``: Kinds of events to await, by step. ``die``: The peer that is killed in epoch 1, and after which step."""

    def __init__(
        self, counts: Any, found: dict[str, Any], record: Path, wait: dict[int, str], die: tuple[int | None, int]
    ) -> None:
        super().__init__()
        self._counts, self.found, self._record, self._wait, self._die = counts, found, record, wait, die

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.found["batches"].append([])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found["batches"][-1].append(batch)
        steps = int(self.model.optimizer.iterations)
        if len(self.found["batches"]) == 2 and (own_id(), batch + 1) == self._die:
            die()
        if kind := self._wait.get(steps):
            count = sum(step <= steps for step in self._wait)  # one more at each of these steps
            await_offer(self._record, self.model.fit.attached.training, count, kind)

    def on_test_begin(self, logs: Any = None) -> None:
        self.found["seen"].append(np.diag(np.asarray(self._counts.total_cm)).tolist())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found["ended"].append(epoch)


class Wishing(keras.callbacks.Callback):
    """Wants training to stop after each batch and epoch, on one peer; on rank 0 that would end it."""

    def __init__(self, peer: int | None) -> None:
        super().__init__()
        self._wishes = lambda: own_id() == peer

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = self._wishes()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = self._wishes()


class Unlike(keras.callbacks.Callback):
    """Leaves another learning rate on each peer but peer 1 at the end of epoch 1, in which rank 0 is killed."""

    def __init__(self, dies: int | None) -> None:
        super().__init__()
        self._leave = lambda: None if dies is None else self._left(dies)

    def _left(self, dies: int) -> None:
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * (1 + (own_id() - 1) / 10))
        if own_id() == dies:
            die()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self._leave()


class Doomed(keras.callbacks.Callback):
    """Of peers 0 to 3 all but the last are killed, one in each epoch from 1 on, at a moment that is drawn.

    The seed is that of the moments and of their order, mostly that of ranks; ``None`` where nobody is killed."""

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        order, begun = [0, 1, 2, 3], time.monotonic()
        draw = random.Random(seed)
        if seed is not None and seed % 3 == 0:
            draw.shuffle(order)
        epochs = {} if seed is None else {peer: place + 1 for place, peer in enumerate(order[:-1])}
        part = [draw.uniform(0.0, 1.3) for _ in range(own_id() + 1)][-1]

        def begins(epoch: int) -> None:
            nonlocal begun
            took, begun = time.monotonic() - begun, time.monotonic()
            if epoch == epochs.get(own_id()):  # within about the time of the epoch before, the end of it too
                dies = threading.Timer(part * took, die)
                dies.daemon = True
                dies.start()

        self._begins = begins  # a number would be rank 0's

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begins(epoch)


def arguments() -> Any:
    """The options: sizes and kinds of events by step, the data, and whom a fault hits when.

    ``slow``: Seconds per batch of the generator's first pass, after peer 1.
    ``unlike``: 1 where each peer is given other data.
    ``shuffled``: 1 where each peer validates in an order of its own.
    ``wishes``: The peer whose callback wants training to stop.
    ``odd``: The peer that has a callback more than the others.
    ``losses``: 1 for losses of every kind; see build_losses.
    ``die``, ``die_at``: The peer that is killed in epoch 1, and after which step of it.
    ``die_in_callback``: The peer that is killed at the end of epoch 1; see Unlike.
    ``doom``: The seed of which peers are killed when; see Doomed.
    """
    data = {"data": "arrays", "slow": 0.0, "unlike": 0, "shuffled": 0, "wishes": None, "odd": None, "losses": 0}
    hits = {"die": None, "die_at": 4, "die_in_callback": None, "doom": None}
    return options(results=Path(), record=Path("log/events.jsonl"), schedule={}, wait={}, epochs=4, **data, **hits)


def own_seed(given: Any) -> int:
    """Of the data of this peer."""
    return own_id() if given.unlike else 5


def parts(losses: int) -> tuple[Any, dict[str, Any], Any, Any]:
    """Inputs and targets, further arguments of ``fit``, the model with its counts, and ``combine`` of ``attach``."""
    if not losses:
        return data(), {}, build(), {}
    *points, weights = data_of_losses()
    return points, {"sample_weight": weights}, build_losses(), COMBINE


def main() -> None:
    import kungfu as kf

    given = arguments()
    given.results.mkdir(exist_ok=True)
    (x, y), more, (model, counts), combine = parts(given.losses)
    policies = [kf.policies.schedule(given.schedule, keep="global_batch_size")] if given.schedule else []
    found: dict[str, Any] = {"seen": [], "batches": [], "ended": [], "left": True}

    kf.keras.attach(model, policies=policies, seed=3, combine=combine)

    def write() -> None:
        # BatchNorm, of which there is one with the losses, sees slices.
        compared = model.trainable_variables if given.losses else model.weights
        found["weights"] = [np.asarray(one).ravel().tolist() for one in compared]
        found["finite"] = all(np.all(np.isfinite(np.asarray(one))) for one in model.weights)
        leave(given.results, found)

    atexit.register(write)  # a peer that is let go ends inside of fit
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * DECAY),
        Told(counts, found, given.record, given.wait, (given.die, given.die_at)),
        keras.callbacks.CSVLogger(given.results / "log.csv"),
        keras.callbacks.ModelCheckpoint(
            given.results / "largest.weights.h5", "loss", mode="max", save_best_only=True, save_weights_only=True
        ),
        Wishing(given.wishes),
        Unlike(given.die_in_callback),
        Doomed(given.doom),
        *([keras.callbacks.TerminateOnNaN()] if own_id() == given.odd else []),
    ]
    trained_on = (
        {"x": x, "y": y, "batch_size": BATCH, **more}
        if given.losses
        else given_data(given.data, own_seed(given), given.slow * (own_id() > 1))
    )
    held_out = slice(0, 20) if not given.unlike else slice(own_id(), 20 + own_id())
    validation: Any = x[held_out], {name: one[held_out] for name, one in y.items()}
    if given.shuffled:
        validation = tf.data.Dataset.from_tensor_slices(validation).shuffle(20, seed=own_id()).batch(5)
    history = model.fit(**trained_on, epochs=given.epochs, callbacks=callbacks, verbose=0, validation_data=validation)
    found |= {"left": False, "history": history.history, "epochs": history.epoch}
    found["traces"] = model.fit.attached.training.traces()


if __name__ == "__main__":
    sys.exit(main())
