"""The variables that follow from this peer's samples, also through functions, branches, loops and other variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kungfu.training.graph.tracing.sample_flow import SampleFlow


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
