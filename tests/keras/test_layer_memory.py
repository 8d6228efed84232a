"""Layers with a memory in ``fit``: refused without a word, wherever they are; with one they train as by Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.keras.evaluation.numbered_batches import numbered_batches
from kungfu.keras.evaluation.shared_pass import SharedEvaluation, SharedPrediction
from tests.keras.fitting import assert_same, compiled, fit_again, float64, in_job, plainly, points
from tests.training.graph.test_layer_memory import Count

X, Y = points()


class Sum(keras.layers.Layer):
    """As in Keras' guide: the sum over the samples that the layer has seen."""

    def __init__(self, word: str | None = None) -> None:
        super().__init__(name="sum")
        self.total = self.add_weight(shape=(3,), initializer="zeros", trainable=False, aggregation=word, name="total")

    def call(self, x: Any) -> Any:
        self.total.assign_add(keras.ops.sum(x, axis=0))
        return x


class Holding(keras.Model):
    """A model that has the layer as an attribute."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.last = layer, keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.last(self.layer(x))


def sequential(layer: Any) -> Any:
    return keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])


def functional(layer: Any) -> Any:
    given = keras.Input((3,))
    return keras.Model(given, keras.layers.Dense(1)(layer(given)))


def in_lambda(layer: Any) -> Any:
    return sequential(keras.layers.Lambda(lambda x: layer(x)))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Holding, "'sum/total'"),
        (lambda layer: functional(sequential(layer)), "'sum/total'"),
        (in_lambda, "a variable that is no weight of the model"),
    ],
)
def test_a_sum_over_samples_without_a_word_is_refused_before_the_first_step(make, told):
    model = compiled(make(Sum()))
    with pytest.raises(UsageError, match=told):
        in_job(model, X.astype("float32"), Y.astype("float32"), batch_size=16)
    assert int(model.optimizer.iterations) == 0


@pytest.mark.slow
def test_a_sum_trains_and_is_that_of_keras_by_the_word_of_attach():
    with float64():
        plain, told = (compiled(sequential(Sum())) for _ in range(2))
        told.set_weights(plain.get_weights())
        plainly(plain, X, Y, batch_size=16, epochs=2)
        kf.keras.attach(told, combine={"sum/total": "sum"})
        fit_again(told, X, Y, batch_size=16, epochs=2)
    assert_same(told, plain)
    np.testing.assert_allclose(np.asarray(told.layers[0].total), 2 * X.sum(axis=0), rtol=1e-8)


class Momentum(keras.Model):
    """Keys of former samples in a queue, which the step fills behind the optimizer; as in MoCo."""

    def __init__(self, word: str | None) -> None:
        super().__init__()
        self.encoder, self.keys = (keras.layers.Dense(3, kernel_initializer="ones") for _ in range(2))
        for one in (self.encoder, self.keys):
            one.build((None, 3))
        self.queue = self.add_weight(
            shape=(40, 3), initializer="zeros", trainable=False, aggregation=word, name="queue"
        )
        self.place = self.add_weight(dtype="int64", initializer="zeros", trainable=False, name="place")

    def call(self, x: Any) -> Any:
        return self.encoder(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        keys, weights = self.keys(x), self.encoder.trainable_weights
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.encoder(x) - keys) ** 2) + tf.reduce_mean(
                self.encoder(x) @ tf.transpose(self.queue)
            )
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for one, other in zip(self.keys.weights, self.encoder.weights, strict=True):
            one.assign(0.9 * one + 0.1 * other)
        self.queue.assign(tf.concat([keys, self.queue], axis=0)[:40])
        self.place.assign_add(1)
        return {"error": loss}


@pytest.mark.slow
def test_a_queue_of_keys_is_refused_without_a_word_and_is_of_one_peer_with_it():
    with float64():
        plain, model, unsaid = (Momentum(word) for word in (None, "only_first_replica", None))
        for one in (plain, model, unsaid):
            one.compile(keras.optimizers.SGD(0.01))
        with pytest.raises(
            UsageError, match=r"Momentum assigns to its variable '\S*queue' what follows from"
        ) as refused:
            in_job(unsaid, X, Y, batch_size=16)
        plainly(plain, X, Y, batch_size=16, epochs=2)
        in_job(model, X, Y, batch_size=16, epochs=2)
    assert "place" not in str(refused.value), "a count of steps needs no word"
    assert_same(model, plain)
    assert np.count_nonzero(np.asarray(model.queue)) == 120


def test_a_part_of_an_evaluation_that_a_layer_remembers_is_put_back_and_done_whole():
    model, data = compiled(sequential(Count("sum", name="count"))), X.astype("float32")
    given = {"x": data, "y": Y.astype("float32"), "sample_weight": None, "batch_size": 10, "steps": None, "verbose": 0}
    batches = numbered_batches(given)
    evaluation = SharedEvaluation(model, given, keras.callbacks.CallbackList([], model=model), {})
    model.evaluate(data, given["y"], verbose=0)
    seen = float(model.layers[0].seen)
    assert not evaluation.do(batches.part([0, 1]), [0, 1])
    assert float(model.layers[0].seen) == seen
    evaluation.do_all()
    assert float(model.layers[0].seen) == seen + len(data)
    only = {"x": data, "batch_size": 10, "steps": None, "verbose": 0}
    prediction = SharedPrediction(model, only, keras.callbacks.CallbackList([], model=model))
    assert not prediction.do(numbered_batches(only).part([0]), [0])
    assert float(model.layers[0].seen) == seen + len(data)
