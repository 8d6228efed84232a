"""The side effects of a step that its trial run must not have."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from kungfu.training.graph.tracing.effects import EffectGate, answered_by_zeros, effects_of


def test_calls_into_python_are_answered_by_zeros_of_the_shapes_that_are_known():
    """The trial run neither calls the program's functions nor fails for want of what they return."""
    called = []

    def double(x):
        called.append(type(x).__name__)
        return 2 * x

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def step(x):
        tf.numpy_function(lambda: called.append("nothing"), [], [])
        array, tensor = tf.numpy_function(double, [x], tf.float32), tf.py_function(double, [x], tf.float32)
        labels = tf.numpy_function(lambda x: np.int32([[4, 5]] * len(x)), [x], tf.int32)
        labels.set_shape([None, 2])
        return array, tensor, labels

    run, x = step.get_concrete_function(), tf.ones([3, 2])
    with answered_by_zeros(effects_of(run.graph, gate=EffectGate(lambda: True)), samples=3):
        answers = [one.numpy().tolist() for one in run(x)]
    assert answers == [[[0, 0]] * 3] * 3
    assert called == []
    assert [one.numpy().tolist() for one in run(x)] == [[[2, 2]] * 3, [[2, 2]] * 3, [[4, 5]] * 3]
    assert sorted(called) == ["EagerTensor", "ndarray", "nothing"]
