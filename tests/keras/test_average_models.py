"""``fit`` with averages of models as a job of one peer; whole jobs are in tests/jobs/test_local_steps_in_fit.py."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import kungfu as kf
from kungfu.control import average_models
from kungfu.errors import PolicyError, UsageError
from tests.keras import fitting
from tests.keras.fitting import compiled, network

X, Y = fitting.points()
USUAL = {"batch_size": 7, "epochs": 2}  # 8 steps an epoch: averages after steps 3, 6 and 8


def averaging(model: Any, *args: Any, every: int = 3, policies: Any = (), **given: Any) -> Any:
    """The history of a compiled model's ``fit`` as a job of one peer that averages its models does it."""
    kf.keras.attach(model, policies=policies, sync=average_models(every=every))
    return fitting.fit_again(model, *args, **given)


@kf.policy
def looking(training, *, steps, into):
    return kf.control.every(steps).call(lambda _, step: into.append(step), training.step)


class Told(keras.callbacks.Callback):
    """The logs after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))


class Ending(keras.callbacks.Callback):
    """Ends training after a step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = batch >= 3


def two_outputs() -> Any:
    keras.utils.set_random_seed(1)
    given = keras.Input((3,))
    outputs = {name: keras.layers.Dense(1, name=name)(given) for name in ("value", "size")}
    model, mean = keras.Model(given, outputs), keras.losses.MeanSquaredError
    return compiled(
        model, {"value": mean(), "size": mean("mean_with_sample_weight")}, loss_weights={"value": 1.0, "size": 0.5},
        metrics={"value": ["mae", "r2_score"]}, weighted_metrics={"size": ["mae"]}, steps_per_execution=3,
    )  # fmt: skip


def test_losses_and_metrics_of_an_epoch_are_those_of_keras_in_whatever_window():
    targets = {"value": Y, "size": np.abs(Y)}
    weights = {"value": np.ones(len(X)), "size": np.linspace(0.0, 2.0, len(X))}
    given = {"sample_weight": weights, "validation_data": (X[:9], {name: one[:9] for name, one in targets.items()})}
    with fitting.float64():
        mine, plain, told = two_outputs(), two_outputs(), Told()
        averaging(mine, X, targets, callbacks=[told], **USUAL, **given)
        fitting.plainly(plain, X, targets, op_by_op=False, **USUAL, **given)  # op by op Keras weighs losses otherwise
        fitting.assert_same(mine, plain)
    assert mine.fit.attached.training.traces() == 1
    assert len(told.logs) == 6, "executions of 3, 3 and 2 steps"


def test_logs_after_a_batch_are_those_of_the_last_average_and_none_before_the_first():
    with fitting.float64():
        mine, plain = (compiled(network(), metrics=["mae"]) for _ in range(2))
        told, known = Told(), Told()
        averaging(mine, X, Y, callbacks=[told], **USUAL)
        fitting.plainly(plain, X, Y, callbacks=[known], **USUAL)
    for epoch in (0, 8):
        assert told.logs[epoch : epoch + 2] == [{}, {}]
        for step, average in enumerate([3, 3, 3, 6, 6, 8], start=3):
            found, expected = told.logs[epoch + step - 1], known.logs[epoch + average - 1]
            assert found == pytest.approx(expected, rel=1e-8)


def test_a_callback_that_ends_training_within_a_window_ends_it_at_the_next_average(capfd):
    with fitting.float64():
        mine, plain = (compiled(network(), metrics=["mae"]) for _ in range(2))
        averaging(mine, X, Y, callbacks=[Ending()], validation_data=(X, Y), **USUAL)
        order = slice(0, 6 * USUAL["batch_size"])
        fitting.plainly(plain, X[order], Y[order], batch_size=7, epochs=1, validation_data=(X, Y))
        fitting.assert_same(mine, plain)
    assert int(mine.optimizer.iterations) == 6
    assert "stop_training" not in capfd.readouterr().err


def test_rules_act_in_steps_that_average_of_which_one_ends_each_epoch():
    called, alone = list[int](), list[int]()
    averaging(compiled(network()), X, Y, policies=[looking(steps=4, into=called)], **USUAL)
    assert called == [6, 8, 14, 16]
    model = compiled(network())
    kf.keras.attach(model, policies=[looking(steps=4, into=alone)], sync=average_models(every=3))
    model.fit(X, Y, verbose=0, **USUAL)
    assert alone == [6, 9, 12], "alone kungfu does not know where Keras' epochs end"


class Counting(keras.layers.Layer):
    """Counts the samples of all peers."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(), trainable=False, aggregation="sum", name="seen")

    def call(self, x: Any) -> Any:
        self.seen.assign(self.seen + keras.ops.cast(keras.ops.shape(x)[0], self.seen.dtype))
        return x


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def own_step() -> Any:
    given = keras.Input((3,))
    return OwnStep(given, keras.layers.Dense(1)(given))


def largest() -> Any:
    return keras.metrics.MeanMetricWrapper(lambda y, found: y, name="largest")


@pytest.mark.parametrize(
    ("make", "given", "told"),
    [
        (lambda: compiled(own_step()), {}, r"the training step of OwnStep.* write the loop with kf\.attach"),
        (
            lambda: compiled(network(), optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())),
            {},
            "which scales the loss",
        ),
        (lambda: compiled(network(Counting())), {}, r"the variable .*seen.* of a layer is declared \"sum\""),
        (
            lambda: compiled(network()),
            {"callbacks": [keras.callbacks.ModelCheckpoint("of_{batch}.weights.h5", save_freq=2)]},
            r"ModelCheckpoint\(save_freq=2\) with sync=.*give save_freq=\"epoch\", or request checkpoints",
        ),
    ],
)
def test_what_needs_a_message_in_each_step_is_refused_before_the_first(make, given, told):
    model = make()
    with pytest.raises(UsageError, match=told):
        averaging(model, X, Y, **USUAL, **given)
    assert not int(model.optimizer.iterations)


@pytest.mark.parametrize(("way", "named"), [("mean", "'mean'"), ("max", "'max'"), (max, "'max'")])
def test_metrics_that_are_no_sums_are_refused(way, named):
    model = compiled(network(), metrics=[largest()])
    kf.keras.attach(model, combine={"largest": way}, sync=average_models(every=3))
    with pytest.raises(UsageError, match=rf"combine={{'largest': {named}}}, which needs the states of all peers in"):
        fitting.fit_again(model, X, Y, **USUAL)


def test_attach_refuses_what_cannot_be_averaged_at_once():
    with pytest.raises(UsageError, match=r"attach\(sync='models'\): takes \"gradients\" or kf.control.average_models"):
        kf.keras.attach(compiled(network()), sync="models")
    policies, sync = [kf.policies.gns_batch(max_peers=4)], average_models(every=2)
    with pytest.raises(PolicyError, match=r"mean_grads|noise scale"):
        kf.keras.attach(compiled(network()), policies=policies, sync=sync)
