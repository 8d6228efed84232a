"""A peer under kungfu-run with a policy that grows and shrinks the job in turn until its end."""

from __future__ import annotations

import argparse
from typing import Any

import keras
import tensorflow as tf

import kungfu as kf
from benchmarks.elasticity import work
from benchmarks.elasticity.stamps import Writer


@kf.policy
def swing(training: Any, *, low: int, high: int, every: int) -> Any:
    """A rule that adds and removes one peer in turn, each after ``every`` steps at a size."""
    steps = kf.fold(lambda count, step: count + 1, 0, training.step, on_rescale="reset")
    return kf.control.always().when(steps >= every).rescale(kf.ops.where(training.size <= low, high, low))


class Ballast(keras.layers.Layer):
    """A layer of frozen state, which passes data through unchanged."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        self.shape_of_one = work.ballast_shape(megabytes)

    def build(self, input_shape: Any) -> None:
        self.all = [self.add_weight(shape=self.shape_of_one, name=f"ballast_{n}") for n in range(work.BALLAST)]
        self.trainable = False

    def call(self, inputs: Any) -> Any:
        return inputs


def build(megabytes: float) -> tuple[keras.Model, Ballast]:
    """The small network, and its ballast layer."""
    keras.utils.set_random_seed(0)
    first, *hidden, last = work.WIDTHS
    ballast = Ballast(megabytes)
    layers = [keras.layers.Dense(width, activation="relu") for width in hidden]
    return keras.Sequential([keras.Input((first,)), ballast, *layers, keras.layers.Dense(last)]), ballast


def main() -> None:
    """Trains until the process is ended or a decision removes this peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--low", type=int, required=True)
    parser.add_argument("--every", type=int, help="steps between two changes; without it the size stays")
    given = work.arguments(parser)
    model, ballast = build(given.megabytes)
    optimizer = keras.optimizers.SGD(0.01)
    policies = [swing(low=given.low, high=given.low + 1, every=given.every)] if given.every else []
    training = kf.attach(model, optimizer, policies=policies)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rewrites = [lambda one=one: one.assign(one * 0.999 + 0.001) is None for one in ballast.all]

    @training.step
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        tf.switch_case(tf.cast(optimizer.iterations.value, tf.int32) % work.BALLAST, rewrites)

    stamps = Writer(given.stamps)
    batches = training.batches(work.data(), batch_size=given.low * work.SAMPLES_EACH, epochs=10**6, seed=0)

    def place() -> tuple[int, int]:
        """The size and the rank; size 0 after this peer has left, as its last step is no survivor's stop."""
        return (0, -1) if training.rank is None else (training.size, training.rank)

    for x, y in batches:
        with stamps.step(lambda: int(optimizer.iterations), place=place):
            work.device(given.device_s)
            step(x, y)


if __name__ == "__main__":
    main()
