"""The first run of a step: nothing of it is left."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.runtime.attachment.variables import memory_of
from tests.training.linear import linear_model, points


class TooOftenError(Exception):
    """Raised by a step that has run often enough."""


def test_the_warm_up_leaves_every_variable_as_it_was_the_users_own_too():
    model = linear_model(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
    optimizer = keras.optimizers.Adam(0.1)
    own, generator, branched = tf.Variable([5, 5]), tf.random.Generator.from_seed(1), tf.Variable(0.0)
    training = kf.attach(model, optimizer, policies=[growing()])
    runs = []

    def second_run_fails():
        runs.append(len(runs))
        if len(runs) > 1:
            raise TooOftenError

    @training.step
    def step(x):
        with tf.control_dependencies([tf.py_function(second_run_fails, [], [])]):
            own.scatter_add(tf.IndexedSlices([1], [0]))
        noise = generator.normal([])
        tf.cond(tf.size(x) > 0, lambda: branched.assign_add(1.0), lambda: branched.read_value())
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x + noise, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def snapshot():
        variables = [*model.variables, *optimizer.variables, own, generator.state, branched]
        return [np.asarray(one).tobytes() for one in variables]

    before = snapshot()
    stale = next(training.batches(points(4), batch_size=2, epochs=1, seed=0))
    training._loop.ledger.progress.offset.assign(2)
    assert step(stale) is kf.SKIPPED
    assert runs == [0], "it ran for warming up only"
    assert snapshot() == before
    assert int(training._loop.ledger.progress.step) == 0
    assert int(training._loop.ledger.posts.asked) == 0, "a rule that fired while warming up posted nothing"


@kf.policy
def growing(training):
    """Asks for two peers in every step, the warm-up too."""
    return kf.control.always().call(lambda control: control.rescale(2))


def test_every_variable_has_its_own_memory_back_and_what_is_not_written_never_leaves_it():
    frozen = keras.layers.Dense(3)
    model = linear_model(frozen)
    frozen.trainable = False
    optimizer, during = keras.optimizers.SGD(0.1, momentum=0.9), []
    training = kf.attach(model, optimizer)
    variables = [weight.value for weight in model.weights]

    def places():
        return memory_of(variables).table[:, 0].tolist()

    @training.step
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        with tf.control_dependencies([variable.read_value() for variable in variables]):  # behind the update
            tf.py_function(lambda: during.append(places()), [], [])

    before = places()
    stale = next(training.batches(points(4), batch_size=2, epochs=1, seed=0))
    training._loop.ledger.progress.offset.assign(2)
    assert step(stale) is kf.SKIPPED
    assert places() == before
    moved = [weight.path for weight, old, new in zip(model.weights, before, during[0], strict=True) if old != new]
    assert moved == [weight.path for weight in model.trainable_weights]
