"""A step whose message fails has moved nothing behind it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from kungfu.training.graph.tracing.trace import StepTrace
from tests.training.linear import linear_run, points, running


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
    fails, trace = tf.Variable(False), StepTrace()
    add_to_nested = tf.function(lambda: nested.assign_add(1))

    def step(value):
        trace.averaged(message(value, fails=fails))
        count.assign_add(1)
        add_to_nested()
        tf.cond(value > 0, lambda: chosen.assign_add(1), lambda: chosen.assign_add(-1))
        return trace.means[0]

    run = tf.function(trace.traced(step))
    with running(eagerly=eagerly):
        run(tf.constant(1.0))
        fails.assign(True)
        for _ in range(10):
            with pytest.raises((tf.errors.UnknownError, LostError)):
                run(tf.constant(1.0))
    assert [int(one) for one in (count, nested, chosen)] == [1, 1, 1]


def test_the_means_that_a_step_takes_are_those_that_hold_its_updates_back():
    count, means = tf.Variable(0), []

    def after(training, gradients):
        count.assign_add(1)
        means[:] = gradients

    run = linear_run(after=after)
    run.step(points(4))
    assert int(count) == int(run.optimizer.iterations) == 1
    awaited = {mean.op for mean in means}
    graph = means[0].graph
    moved = [op for op in graph.get_operations() if op.type in ("AssignVariableOp", "AssignAddVariableOp")]
    behind = [op for op in moved if awaited <= set(op.control_inputs)]
    assert {"AssignVariableOp", "AssignAddVariableOp"} == {op.type for op in behind}  # the optimizer's, and our own
