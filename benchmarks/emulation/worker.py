"""A peer under kungfu-run with an emulated device: the seconds of a step are read from a table by the job's size.

Peers, graph, messages, policies and decisions are real; only the computation is a sleep. The table's seconds include
the exchange of gradients, so a step is due that long after the last step: a device that is fed ahead hides Python's
part, and up to `HIDDEN_S` of the exchange. Longer delays (waiting for a slow peer, a barrier) are not hidden.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.elasticity.stamps import Writer

HIDDEN_S = 0.003
REST_PERCENT, REST_WITHIN_S = 15.0, 120.0


@dataclass
class Device:
    """An emulated device.

    Args:
        seconds: The seconds of a step, by the size of the job.
        size: Returns the size of the job.
        factor: Returns the factor by which this peer's steps take longer.
        called: The time at which the present step was called.
        due: The time at which its gradients are computed.
        synchronised: The time at which the last all-reduce ended.
        is_resting: True if the next step waits until this machine is idle.
    """

    seconds: Mapping[int, float]
    size: Callable[[], int]
    factor: Callable[[], float] = lambda: 1.0
    called: float = 0.0
    due: float = 0.0
    synchronised: float = 0.0
    is_resting: bool = False

    def begin(self) -> None:
        """Begins a step."""
        self.called = time.monotonic()

    def wait(self) -> None:
        """Returns when the device has computed the gradients."""
        # Spares start once the job trains: the first step, which counts as long as the second one, waits for them.
        if self.is_resting:
            self.is_resting = False
            await_rest()
        self.due = self.next_due()
        time.sleep(max(0.0, self.due - time.monotonic()))

    def next_due(self) -> float:
        """The time at which the last step will be computed."""
        begun = max(self.due, self.synchronised - HIDDEN_S, self.called - HIDDEN_S)
        return begun + self.seconds[self.size()] * self.factor()

    def synchronise(self) -> None:
        """Ends the all-reduce of a step."""
        self.synchronised = time.monotonic()


@dataclass
class StepCounter:
    """The steps of the job, counted where possible: reading them costs more than a step of a small model.

    Args:
        read: Reads the number of steps from the job.
        steps: The steps so far; -1 before this peer's first step.
    """

    read: Callable[[], int]
    steps: int = -1

    def count(self, *, skipped: bool) -> None:
        """Counts a step; after a skipped one, the steps are read."""
        self.steps = self.read() if skipped or self.steps < 0 else self.steps + 1


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stamps", type=Path, required=True, help="folder for the stamps")
    parser.add_argument("--seconds", type=json.loads, required=True, help="JSON: seconds of a step by size")
    parser.add_argument("--samples", type=int, required=True, help="of the whole job")
    parser.add_argument("--batch", type=int, required=True, help="samples of a step of the whole job at its start")
    parser.add_argument("--slow", type=float, nargs="+", default=[1.0], help="how many times as long a slow peer takes")
    parser.add_argument("--phase", type=int, default=0, help="steps after which the next one of them holds")
    parser.add_argument("--at-rest", action="store_true", help="the first step waits until nothing else runs")
    parser.add_argument("--slow-every", type=int, default=0, help="every so many peers one is slow (none)")
    return parser.parse_args()


def await_rest() -> None:
    """Returns when this machine's processors are idle, so that the starts of other processes are not timed."""
    until = time.monotonic() + REST_WITHIN_S
    while time.monotonic() < until and psutil.cpu_percent(interval=2.0) > REST_PERCENT:
        pass


def is_slow(peer: int, *, every: int) -> bool:
    """True if the peer is slow: the last of each group of ``every`` peers.

    >>> [peer for peer in range(12) if is_slow(peer, every=4)]
    [3, 7, 11]
    """
    return every > 0 and peer % every == every - 1


def factor_at(step: int, factors: Sequence[float], *, phase: int) -> float:
    """The factor after ``step`` steps; after the last phase, the last factor.

    >>> [factor_at(step, [1.0, 2.0, 4.0], phase=2) for step in range(7)]
    [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 4.0]
    """
    return factors[min(max(step, 0) // phase, len(factors) - 1) if phase else 0]


def main() -> None:
    """Trains until all samples are done, or this peer is removed."""
    given = arguments()
    # Keras imports them if they are installed, a third of a peer's start.
    sys.modules |= dict.fromkeys(("matplotlib", "sklearn"))  # type: ignore[arg-type]  # None: not installed
    import keras

    import kungfu as kf

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.0)
    training = kf.attach(model, optimizer)
    slow = given.slow if is_slow(training.peer, every=given.slow_every) else [1.0]
    seconds = {int(size): one for size, one in given.seconds.items()}
    device = Device(
        seconds,
        lambda: training.size,
        lambda: factor_at(counter.steps, slow, phase=given.phase),
        is_resting=given.at_rest and training.peer == 0,
    )
    step = emulated_step(training, model, optimizer, device)
    rows, stamps = np.broadcast_to(np.float32(1), (given.samples, 1)), Writer(given.stamps)

    def place() -> tuple[int, int]:
        """The size and the rank; size 0 if this peer has just left."""
        return (0, -1) if training.rank is None else (training.size, training.rank)

    counter = StepCounter(lambda: int(optimizer.iterations))
    for x in training.batches(rows, batch_size=given.batch, epochs=1, seed=0):
        with stamps.step(lambda: counter.steps, place=place):
            device.begin()
            counter.count(skipped=step(x) is training.SKIPPED)


def emulated_step(training: Any, model: Any, optimizer: Any, device: Device) -> Callable[[Any], None]:
    """The training step, for a model of one weight on an emulated device."""
    import tensorflow as tf

    @training.step
    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) - x)
        (gradient,) = tape.gradient(loss, model.trainable_variables)
        with tf.control_dependencies([tf.numpy_function(device.wait, [], [])]):
            gradient = tf.identity(gradient)
        (gradient,) = training.average([gradient], loss=loss)
        with tf.control_dependencies([gradient]):
            tf.numpy_function(device.synchronise, [], [])
        optimizer.apply_gradients([(gradient, model.trainable_variables[0])])

    return step


if __name__ == "__main__":
    main()
