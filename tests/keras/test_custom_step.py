"""A training step of the program's own, taken at the optimizers: it comes to what plain Keras comes to."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from tests.keras import fitting

X, Y = fitting.points()


class Pair(keras.Model):
    """Two networks with an optimizer each: the second one learns what the first one makes of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = fitting.network(), fitting.network()
        self.follower = fitting.network()  # goes after the first one's weights
        self.seen = keras.metrics.Mean("seen")

    def compile(self, optimizers: list[Any]) -> None:
        super().compile()
        self.both = optimizers

    @property
    def metrics(self) -> list[Any]:
        return [self.seen]

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.first(x) - y) ** 2)
        weights = self.first.trainable_weights
        self.both[0].apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for one, other in zip(self.follower.trainable_weights, weights, strict=True):
            one.assign(0.9 * one + 0.1 * other)
        with tf.GradientTape() as tape:
            other_loss = tf.reduce_mean((self.second(x) - self.first(x)) ** 2)
        weights = self.second.trainable_weights
        self.both[1].apply(tape.gradient(other_loss, weights), weights)
        self.seen.update_state(tf.reduce_sum(x, axis=1))
        return {"average": self.seen.result(), "loss": other_loss, "steps": self.both[0].iterations.value}


def pair() -> Any:
    model = Pair()
    model.compile([keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.1, momentum=0.9)])
    return model


@pytest.mark.slow
def test_two_optimizers_in_one_step_come_to_what_plain_keras_comes_to(capfd):
    with fitting.float64():
        plain, model, watched = pair(), pair(), pair()
        fitting.plainly(plain, X, Y, batch_size=16, epochs=2, op_by_op=False)
        fitting.in_job(model, X, Y, batch_size=16, epochs=2)
        seen: list[float] = []
        looking = kf.policy(
            lambda training: kf.control.always().call(lambda _, loss: seen.append(loss), training.mean_loss)
        )()
        kf.keras.attach(watched, policies=[looking])
        told: list[float] = []
        noting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: told.append(float(logs["loss"])))
        fitting.plainly(watched, X, Y, batch_size=16, epochs=2, callbacks=[noting])
    for one in (model, watched):
        fitting.assert_same(one, plain)
        for mine, other in zip(one.both, plain.both, strict=True):
            fitting.assert_same_variables(mine.variables, other.variables, relative=1e-8, absolute=1e-12)
        assert one.fit.attached.training.traces() == 1
    assert plain.history.history["steps"] == [4, 8]
    assert len(seen) >= 2
    assert all(np.min(np.abs(np.array(told) - one)) < 1e-6 for one in seen), "that of the last application"
    said = capfd.readouterr().err
    assert said.count("Pair has a training step of its own, without XLA; gradients are averaged where it applies") == 2
    assert said.count("2 times per step (adam") == 2


class CustomMetrics(keras.Model):
    """Keras' step, and metrics of the program's own way; a loss of a layer's beside that of ``compile``."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.largest = fitting.network(), keras.metrics.MeanAbsoluteError("error")
        self.regularised = keras.layers.ActivityRegularization(l2=0.01)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.regularised(self.net(x))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.largest.update_state(y, y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)


@pytest.mark.slow
def test_metrics_computed_in_the_programs_own_way_and_losses_of_layers():
    given = {"batch_size": 16, "epochs": 2, "validation_data": (X[:10], Y[:10])}
    model = fitting.assert_as_keras(CustomMetrics, X, Y, **given, compile_with=lambda: {"metrics": ["mse"]})
    assert {"loss", "mse", "error", "val_error"} <= set(model.history.history)


class Wrong(keras.Model):
    """Its step returns what ``how`` makes of gradients, weights and errors, after it ``applies`` the gradients."""

    def __init__(self, how: Any, optimizer: Any, *, applies: bool = True) -> None:
        super().__init__()
        self.net, self.how, self.applies = fitting.network(), how, applies
        self.given = lambda: optimizer  # not as an attribute

    def train_step(self, data: Any) -> Any:
        x, y = data
        weights = self.net.trainable_weights
        with tf.GradientTape() as tape:
            errors = (self.net(x) - y) ** 2
            loss = tf.reduce_mean(errors)
        gradients = tape.gradient(loss, weights)
        if self.applies:
            self.optimizer.apply(gradients, weights)
        returned = self.how(self, gradients, weights, errors)
        return {"loss": loss} if returned is None else returned


def conditioned(model: Any, gradients: Any, weights: Any, errors: Any) -> None:
    positive = tf.reduce_mean(errors) > 0.0
    keras.ops.cond(positive, lambda: model.optimizer.apply(gradients, weights), lambda: None)


def in_function(model: Any, gradients: Any, weights: Any, errors: Any) -> None:
    tf.function(lambda: model.optimizer.apply(gradients, weights))()


def past(model: Any, gradients: Any, weights: Any, errors: Any) -> None:
    weights[0].assign_sub(0.1 * gradients[0])


def unknown(model: Any, gradients: Any, weights: Any, errors: Any) -> None:
    model.given().apply(gradients, weights)


WRONG = [
    (conditioned, r"Wrong\.train_step\(\) applies gradients by '\w+' in a function inside of the step, under a cond"),
    (in_function, "in a function inside of the step"),
    (past, r"assigns to the weight '\S+kernel' what this peer has computed from its own samples, past the optim"),
    (unknown, r"past the optimizers that the model holds \('adam\w*'\), so the weights of the peers would part"),
    (lambda *_: None, r"applies no gradients by an optimizer that compile\(\) was given .* \('adam\w*'\)"),
    (
        lambda *given: tf.reduce_mean(given[-1]),
        r"train_step\(\) returns SymbolicTensor: Keras takes a dictionary of numbers",
    ),
    (lambda *given: {"each": given[-1]}, r"returns a float32 of shape \(None, 1\) as 'each'"),
    (lambda *_: {"said": "well"}, "returns a string of shape .* as 'said'"),
]


@pytest.mark.parametrize(("how", "told"), WRONG)
def test_a_step_that_peers_cannot_do_together_is_refused_before_the_first_step(how, told):
    applies = how not in (conditioned, in_function) and "applies no gradients" not in told
    model = Wrong(how, keras.optimizers.SGD(0.1), applies=applies)
    model.compile(keras.optimizers.Adam(0.01))
    with pytest.raises(UsageError, match=told):
        fitting.in_job(model, X.astype("float32"), Y.astype("float32"))
    assert all(int(one.iterations) == 0 for one in (model.optimizer, model.given()))


@pytest.mark.slow
def test_a_policy_that_reads_the_loss_has_to_find_it():
    class Inside(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.net = fitting.network()

        @tf.function
        def gradients(self, x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.net(x) ** 2)
            return tape.gradient(loss, self.net.trainable_weights)

        def train_step(self, data: Any) -> Any:
            self.optimizer.apply(self.gradients(data), self.net.trainable_weights)
            return {"loss": 0.5}

    model = Inside()
    model.compile("sgd")
    never = kf.policy(lambda training: kf.control.always().when(training.mean_loss < -1.0).stop())()
    with pytest.raises(UsageError, match=r"reads the loss, and Inside\.train_step\(\) takes no gradient"):
        fitting.in_job(model, X, policies=[never])
    model = Inside()
    model.compile("sgd")
    assert fitting.in_job(model, X, epochs=2).history["loss"] == [0.5, 0.5]


class Scaled(keras.Model):
    """Its optimizer scales the loss, as in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.net = fitting.network()
        self.optimizers = [keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0)]

    def train_step(self, data: Any) -> Any:
        x, y = data
        weights, optimizer = self.net.trainable_weights, self.optimizers[0]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x) - y) ** 2)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        return {"error": loss}


@pytest.mark.slow
def test_an_optimizer_that_scales_the_loss_is_taken_as_a_whole():
    plain, model = Scaled(), Scaled()
    for one in (plain, model):
        one.compile()
    seen: list[float] = []
    looking = kf.policy(lambda training: kf.control.always().call(lambda _, x: seen.append(x), training.mean_loss))()
    data = X.astype("float32"), Y.astype("float32")
    fitting.plainly(plain, *data, batch_size=50, epochs=3)
    fitting.in_job(model, *data, batch_size=50, epochs=3, policies=[looking])
    fitting.assert_same(model, plain, relative=1e-5)
    assert seen
    assert all(min(abs(one - loss) for loss in plain.history.history["error"]) < 1e-5 for one in seen)
