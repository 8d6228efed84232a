"""A step whose message fails has moved nothing behind it, and the variables that follow from this peer's samples."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from kungfu.training.graph.tracing.sample_flow import SampleFlow
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


# ---- what follows from samples, also through functions, branches, loops and other variables --------------------------


def test_values_that_follow_from_samples_are_found_through_functions_and_loops():
    names = ["summed", "counted", "mean", "twice", "chosen", "steady", "rows", "turns", "long", "late", "early"]
    held = {name: tf.Variable(0.0) for name in (*names, "drawn", "copied", "agreed")}
    held["queue"] = tf.Variable(tf.zeros([4, 2]))

    @tf.function(jit_compile=True, autograph=False)
    def inside(x: Any) -> Any:
        held["summed"].assign_add(tf.reduce_sum(x))
        held["counted"].assign_add(1.0)
        return tf.reduce_mean(x), held["counted"] + 0.0

    def moved(name: str) -> Any:
        return held[name].assign_add(1.0)

    def step(x: Any) -> list[Any]:
        mean, count = inside(x)
        held["mean"].assign(mean)
        held["twice"].assign(count)
        tf.cond(mean > 0, lambda: moved("chosen"), lambda: held["chosen"].read_value())
        tf.cond(count > 0, lambda: moved("steady"), lambda: held["steady"].read_value())
        held["rows"].assign(tf.cast(tf.shape(x)[0], tf.float32))
        tf.while_loop(lambda turn: turn < 3.0, lambda turn: turn + 1.0 + 0.0 * moved("turns"), (0.0,))
        tf.while_loop(lambda turn: turn < held["rows"], lambda turn: turn + 1.0 + 0.0 * moved("long"), (0.0,))
        held["early"].assign(held["late"] + 1.0)  # of what the step before has left
        held["late"].assign(tf.reduce_sum(x))
        held["drawn"].assign(tf.random.uniform([]))
        held["queue"].assign(tf.concat([x, held["queue"][:-2]], axis=0))
        held["copied"].assign(held["twice"] * 2.0)
        total = mean * 2.0
        held["agreed"].assign(total + 1.0)
        return [total]

    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([None, 2])).graph
    samples = [one for one in graph.inputs if one.dtype != tf.resource]
    (total,) = [one.op.inputs[0] for one in graph.outputs]
    flow = SampleFlow(graph, samples, agreed=[total], equal={id(held["rows"].handle)})
    found = {name for name, one in held.items() if id(one.handle) in flow.written}
    assert found == {"summed", "mean", "chosen", "late", "early", "drawn", "queue"}
    flow = SampleFlow(graph, samples)
    found = {name for name, one in held.items() if id(one.handle) in flow.written}
    assert found == {"summed", "mean", "chosen", "late", "early", "drawn", "queue", "rows", "long", "agreed"}
    assert flow.last_written(held["agreed"].handle) > flow.last_written(held["summed"].handle) >= 0
