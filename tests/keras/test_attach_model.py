"""One line between ``compile`` and ``fit``: what it leaves as it was, and what it refuses."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import PolicyError, UsageError
from tests.keras.fitting import assert_same, assert_same_variables, compiled, float64, in_job, network, plainly, points

X, Y = points()


def at_step(step: int) -> Any:
    """Stops training after so many steps."""
    return kf.policy(lambda training: kf.control.always().when(training.step >= step).stop())()


@pytest.mark.slow
def test_alone_without_policies_fit_is_that_of_keras_bit_for_bit():
    one, other = (compiled(network(keras.layers.Dropout(0.5, seed=1)), metrics=["mae"]) for _ in range(2))
    given = {"batch_size": 16, "epochs": 2, "shuffle": True, "validation_split": 0.2}
    for model in (one, other):
        if model is one:
            kf.keras.attach(model)
        tf.random.set_seed(7)
        plainly(model, X, Y, op_by_op=False, **given)
    assert one.history.history == other.history.history
    assert_same_variables(one.weights, other.weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        lambda: {"x": X, "y": Y, "batch_size": 16, "shuffle": True},
        lambda: {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), "shuffle": False},
        lambda: {"x": ((X[:16], Y[:16]) for _ in range(40)), "steps_per_epoch": 4, "shuffle": False},
    ],
    ids=["arrays", "dataset", "generator"],
)
def test_alone_policies_see_the_steps_of_keras_own_fit(data):
    with float64():
        one, other = compiled(network(), metrics=["mae"]), compiled(network(), metrics=["mae"])
        kf.keras.attach(one, policies=[at_step(1000)])
        other.run_eagerly = True  # by Keras' own step
        for model in (one, other):
            tf.random.set_seed(7)
            model.fit(**data(), epochs=2, verbose=0)
        assert_same(one, other)
        one.fit(**data(), epochs=1, verbose=0)
        assert one.fit.attached.training.traces() == 1, "a second fit goes on with the step"
        assert int(one.optimizer.iterations) == 12


COSINE = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=12)


class Product(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule, halved after every fourth step."""

    def __call__(self, step: Any) -> Any:
        return COSINE(step) * 0.5 ** tf.cast(step // 4, tf.float32)


def alone(model: Any, *args: Any, policies: Any, **given: Any) -> None:
    kf.keras.attach(model, policies=policies)
    plainly(model, *args, **given)


@pytest.mark.parametrize("fit", [alone, in_job])
def test_a_factor_multiplies_the_schedule_of_a_fit_as_one_of_keras_would(fit):
    halving = kf.Policy("halving", lambda training: kf.control.learning_rate(0.5 ** ((training.step - 1) // 4)))
    (x, y), given = points(), {"epochs": 3, "batch_size": 16}
    with float64():
        mine, plain = (compiled(network(), optimizer=keras.optimizers.SGD(one)) for one in (COSINE, Product()))
        fit(mine, x, y, policies=[halving], **given)
        plainly(plain, x, y, **given)
        # The schedule is of float32, and the plain fit runs op by op.
        assert_same(mine, plain, relative=1e-5)
    assert float(mine.optimizer.learning_rate) == float(COSINE(12)), "outside the step, the schedule alone"


@pytest.mark.slow
def test_what_is_saved_cloned_or_loaded_after_it_is_a_plain_model(tmp_path):
    model = compiled(network(), metrics=["mae"])
    in_job(model, X, Y, batch_size=16)
    kind = type(model)
    model.save(tmp_path / "model.keras")
    for other in (keras.models.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)):
        assert type(other) is kind
        assert not {"fit", "train_on_batch", "make_train_function"} & set(vars(other))
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    plainly(loaded, X, Y)
    assert loaded.optimizer.iterations == model.optimizer.iterations + 2


@pytest.mark.slow
def test_a_second_attach_takes_the_place_of_the_first():
    model = compiled(network())
    kf.keras.attach(model, policies=[at_step(2)])
    kf.keras.attach(model)
    assert len(model.fit(X, Y, epochs=3, verbose=0).epoch) == 3
    model.compile("sgd", "mse")
    with pytest.raises(UsageError, match=r"compiled after kf\.keras\.attach\(\), and has another optimizer now"):
        model.fit(X, Y, verbose=0)
    kf.keras.attach(model)
    model.fit(X, Y, verbose=0)
    kf.keras.attach(model, policies=[at_step(2)])
    assert model.fit(X, Y, batch_size=10, epochs=3, verbose=0).epoch == [0], "also after a fit without policies"
    assert model.stop_training
    kf.keras.attach(model)
    assert len(model.fit(X, Y, batch_size=10, epochs=3, verbose=0).epoch) == 3


def test_what_is_no_compiled_model_is_refused():
    with pytest.raises(UsageError, match="was given int: it takes a compiled Keras 3 model"):
        kf.keras.attach(3)
    with pytest.raises(UsageError, match="is not compiled: call it between"):
        kf.keras.attach(network())


def test_a_wrong_policy_is_refused_at_once():
    @kf.policy
    def local(training: Any) -> Any:
        return kf.control.always().when(training.loss > 1.0).stop()

    with pytest.raises(PolicyError, match="local"):
        kf.keras.attach(compiled(network()), policies=[local()])


def test_an_attach_inside_of_fit_is_refused():
    model = compiled(network())
    kf.keras.attach(model)
    attaching = keras.callbacks.LambdaCallback(on_train_begin=lambda _: kf.keras.attach(model))
    with pytest.raises(UsageError, match=r"while the model '\w+' is in its fit"):
        model.fit(X, Y, verbose=0, callbacks=[attaching])
    kf.keras.attach(model)
