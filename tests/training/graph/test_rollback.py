"""A peer without samples runs a step on another peer's: what is equal on all peers goes on, and nothing else moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.runtime.core.sample_slices import Stamp
from tests.training.linear import linear_model, linear_run, points

NAN = np.full([1, 4, 4, 1], np.nan, np.float32)
ONES = np.ones([3, 4, 4, 1], np.float32)


@dataclass
class Network:
    """Convolution and BatchNorm, and all kinds of variables that a step may move."""

    model: Any
    optimizer: Any
    training: Any
    step: Any
    metric: Any
    own: dict[str, tf.Variable]
    registered: tf.Variable

    def moving(self) -> dict[str, bytes]:
        """What must not move in a step without samples, as bytes by name."""
        statistics = {one.path: one for one in self.model.non_trainable_variables if "moving" in one.path}
        metric = {one.path: one for one in self.metric.variables}
        return {name: np.asarray(one).tobytes() for name, one in {**statistics, **metric, **self.own}.items()}

    def fed(self, x: Any, *, micro: int = 0, micros: int = 1, empty: bool = False) -> Any:
        """A step, or a micro-batch of one; ``empty``: this peer has no samples for it."""
        tensor = tf.constant(x)
        self.training._calls.stamps.put([tensor], Stamp(-1, 0, 0, micro, micros, empty))
        return self.step(tensor)


def network(*, most: int | None = None) -> Network:
    layers = [keras.layers.Conv2D(2, 3, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((4, 4, 1)), *layers, keras.layers.Dense(1)])
    optimizer, metric = keras.optimizers.SGD(0.1), keras.metrics.Mean()
    own = {"count": tf.Variable(0), "seen": tf.Variable([0.0, 0.0]), "branched": tf.Variable(0)}
    registered, fails = tf.Variable(0), tf.Variable(False)
    training = kf.attach(model, optimizer)
    training.register("counter", registered)
    own_count = tf.function(lambda: own["branched"].assign_add(1))

    @training.step
    def step(x):
        own["count"].assign_add(1, read_value=False)
        own["seen"].scatter_add(tf.IndexedSlices([tf.reduce_sum(x)], [0]))
        tf.cond(tf.size(x) > 0, own_count, lambda: own["branched"].read_value())
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        metric.update_state(loss)
        tf.debugging.assert_equal(fails, False)
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        registered.assign_add(1)
        return loss

    if most is not None:
        training.batches(np.zeros([9, 4, 4, 1], np.float32), batch_size=9, epochs=1, seed=0, max_local_batch_size=most)
    own["fails"] = fails
    return Network(model, optimizer, training, step, metric, own, registered)


def test_a_step_without_samples_is_undone_except_what_is_equal_on_all_peers():
    net = network()
    net.fed(ONES)
    before, weights = net.moving(), [np.asarray(one).tolist() for one in net.model.trainable_variables]
    assert np.isnan(net.fed(NAN, empty=True)), "the step itself sees that sample"
    assert net.moving() == before
    assert [np.asarray(one).tolist() for one in net.model.trainable_variables] == weights, "0 * NaN is NaN"
    assert (int(net.registered), int(net.optimizer.iterations)) == (2, 2)
    assert net.training.traces() == 1
    net.fed(ONES)
    assert net.moving() != before


def test_a_share_that_has_samples_in_its_first_micro_batches_only_counts_those():
    net = network(most=3)
    for micro, count in enumerate([2, 1]):
        net.fed(ONES[:count], micro=micro, micros=3)
    before = net.moving()
    net.fed(NAN, micro=2, micros=3, empty=True)
    assert net.moving() == before
    assert all(np.all(np.isfinite(np.asarray(one))) for one in net.model.weights)
    assert float(net.training._run.graph_state.metrics.samples) == 3.0
    assert int(net.optimizer.iterations) == 1


def test_what_a_step_without_samples_did_before_it_failed_is_put_back():
    net = network()
    net.fed(ONES)
    net.own["fails"].assign(True)
    before = net.moving()
    with pytest.raises(tf.errors.InvalidArgumentError):
        net.fed(NAN, empty=True)
    assert net.moving() == before


def test_empty_batches_in_a_loop_of_steps_move_nothing_of_the_programs_own():
    seen = tf.Variable(0)
    run = linear_run(before=lambda training, x: seen.assign_add(1))
    run.step(points(2))

    @tf.function
    def loop(x):
        for start in tf.range(3):
            run.step(x[2 * start :])

    loop(tf.constant(points(4)))
    assert int(seen) == 3, "one alone, two of the three in the loop"


def test_an_average_in_a_function_puts_only_the_programs_variables_back():
    model, seen = linear_model(), tf.Variable(0)
    training = kf.attach(model, keras.optimizers.SGD(1.0))
    inner = tf.function(lambda x: training.average([tf.reduce_sum(x)], loss=0.0))

    @training.step
    def step(x):
        seen.assign_add(1)
        inner(x)

    step(points(2))
    assert [handle is seen.handle for handle in training._run.trace.handles] == [True]
    step(np.zeros([0, 2], np.float32))
    assert int(seen) == 1
    assert int(training._run.graph_state.progress.step) == 2
