"""What users do to make a step fast: XLA around forward and backward, and many steps in one call of TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from tests.training.linear import linear_model, linear_run, points


def seen_by(policy_seen: list[tuple[float, ...]]) -> Any:
    """A policy that calls Python in every step, with what it saw."""

    @kf.policy
    def watching(training):
        norm = kf.ops.norm_squared(training.mean_grads)
        average = training.mean_loss.ema(0.5)
        return kf.control.always().call(
            lambda control, *values: policy_seen.append(values), training.step, norm, average
        )

    return watching()


def trained(*, jit: bool, steps: int) -> tuple[list[tuple[float, ...]], Any, int]:
    """What the policy saw, the weights, and the traces, with or without XLA around forward and backward."""
    seen: list[tuple[float, ...]] = []
    keras.utils.set_random_seed(3)
    layers = keras.layers.Dense(8, activation="tanh"), keras.layers.LayerNormalization()
    model = linear_model(*layers)
    optimizer = keras.optimizers.SGD(0.05)
    training = kf.attach(model, optimizer, policies=[seen_by(seen)])

    @tf.function(jit_compile=jit)
    def forward_and_backward(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - 1.0))
        return loss, tape.gradient(loss, model.trainable_variables)

    @training.step
    def step(x):
        loss, gradients = forward_and_backward(x)
        gradients = training.average(gradients, loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(steps):
        step(points(4) / 4)
    return seen, [np.asarray(one) for one in model.weights], training.traces()


@pytest.mark.slow
def test_the_users_forward_and_backward_may_be_compiled_by_xla():
    plain, weights, _ = trained(jit=False, steps=6)
    compiled, same_weights, traces = trained(jit=True, steps=6)
    assert traces == 1
    assert len(compiled) == len(plain) >= 3
    np.testing.assert_allclose(compiled, plain, rtol=1e-4)
    for one, other in zip(weights, same_weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_policy_and_barrier_run_on_every_inner_step_of_a_while_loop():
    """What Keras does under ``steps_per_execution``: the step inside a loop of TensorFlow."""
    looped, singly = [], []
    inside, outside = (linear_run(policies=[seen_by(one)]) for one in (looped, singly))
    batches = np.stack([points(2) * scale for scale in range(1, 8)])
    for run in (inside, outside):
        run.step(batches[0])

    @tf.function
    def many(given):
        for index in tf.range(len(given)):
            inside.step(given[index])

    many(tf.constant(batches[1:]))
    for batch in batches[1:]:
        outside.step(batch)
    assert looped == singly
    assert [step for step, *_ in looped] == [1, 3, 5]
    assert inside.weights.tolist() == outside.weights.tolist()
    assert inside.training.traces() == 1
