"""A step whose message fails has moved nothing behind it."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.training.graph.tracing.trace import order_after_average
from tests.training.linear import linear_model, points


class LostError(Exception):
    """What the message of this test comes to."""


def message(value: tf.Tensor, *, fails: tf.Variable) -> tf.Tensor:
    """An op that may fail, as an all-reduce does."""

    def send(fails, value):
        if bool(fails):
            raise LostError
        return value

    received = tf.py_function(send, [fails.read_value(), value], tf.float32)
    received.set_shape(())
    return received


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_variable_that_does_not_need_the_means_is_moved_with_them_and_not_without(eagerly):
    count, nested, chosen = (tf.Variable(0) for _ in range(3))
    fails, means = tf.Variable(False), []
    add_to_nested = tf.function(lambda: nested.assign_add(1))

    def step(value):
        means[:] = [message(value, fails=fails)]
        count.assign_add(1)
        add_to_nested()
        tf.cond(value > 0, lambda: chosen.assign_add(1), lambda: chosen.assign_add(-1))
        return means[0]

    run = tf.function(order_after_average(step, means=lambda: means))
    tf.config.run_functions_eagerly(eagerly)
    try:
        run(tf.constant(1.0))
        fails.assign(True)
        for _ in range(10):
            with pytest.raises((tf.errors.UnknownError, LostError)):
                run(tf.constant(1.0))
    finally:
        tf.config.run_functions_eagerly(False)
    assert [int(one) for one in (count, nested, chosen)] == [1, 1, 1]


def test_the_means_that_a_step_takes_are_those_that_hold_its_updates_back():
    model, optimizer, count = linear_model(), keras.optimizers.SGD(1.0), tf.Variable(0)
    training, means = kf.attach(model, optimizer), []

    @training.step
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        count.assign_add(1)
        means[:] = gradients

    step(points(4))
    assert int(count) == int(optimizer.iterations) == 1
    awaited = {mean.op for mean in means}
    graph = means[0].graph
    moved = [op for op in graph.get_operations() if op.type in ("AssignVariableOp", "AssignAddVariableOp")]
    behind = [op for op in moved if awaited <= set(op.control_inputs)]
    assert {"AssignVariableOp", "AssignAddVariableOp"} == {op.type for op in behind}  # the optimizer's, and our own
