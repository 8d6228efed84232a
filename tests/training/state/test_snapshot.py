"""A snapshot of tracked objects: what is written is the moment when it was drawn up."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from kungfu.training.state.snapshot import tracked_tree
from tests.training.linear import linear_model


def test_a_copy_keeps_its_values_whatever_is_assigned_meanwhile(tmp_path):
    model, optimizer = linear_model(keras.layers.Dense(3)), keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    counter = tf.Variable([1.0, 2.0])
    root = tf.train.Checkpoint(model=model, optimizer=optimizer, rest=tf.train.Checkpoint(**{"policy/a b": counter}))
    tree = tracked_tree(root)
    before = [np.asarray(one).copy() for one in model.weights]
    values = tree.values()
    optimizer.apply_gradients([(tf.ones_like(one), one) for one in model.trainable_variables])
    counter.scatter_nd_update([[0]], [7.0])
    tree.copy_with(values).write(str(tmp_path / "state"))
    assert not np.array_equal(model.weights[0], before[0])
    status = root.read(str(tmp_path / "state"))
    status.assert_existing_objects_matched()
    for one, was in zip(model.weights, before, strict=True):
        assert np.array_equal(one, was)
    assert counter.numpy().tolist() == [1.0, 2.0]
    assert int(optimizer.iterations) == 0


def test_a_variable_that_is_reached_twice_is_one_of_the_tree():
    shared = tf.Variable(1.0)
    tree = tracked_tree(tf.train.Checkpoint(a=shared, b=tf.train.Checkpoint(again=shared)))
    assert sum(one is not None for one in tree.variables) == 1
    copy = tree.copy_with(tree.values())
    assert copy.a is copy.b.again
