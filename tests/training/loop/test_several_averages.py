"""A step that averages as often as it says: critic steps, or the two gradients of sharpness-aware minimisation."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.compiler.lower import fused
from kungfu.errors import UsageError
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.training.graph.average import average_before_last
from tests.training.linear import linear_model, points
from tests.training.peers import averaging_of, on_peers

RADIUS, RATE = 0.5, 0.25


def attached(*optimizers: Any, policies: Any = ()) -> tuple[Any, Any]:
    model = linear_model()
    return model, kf.attach(model, list(optimizers) or keras.optimizers.SGD(RATE), policies=policies)


def loss_of(model: Any, x: Any) -> Any:
    return tf.reduce_mean((model(x) - 1.0) ** 2)


def gradients_of(model: Any, x: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        loss = loss_of(model, x)
    return tape.gradient(loss, model.trainable_variables), loss


def sharp_by_hand(steps: int, x: np.ndarray) -> np.ndarray:
    """Weights after sharpness-aware minimisation in NumPy."""
    weights = np.zeros(2)
    for _ in range(steps):
        found = 2 * (x @ weights - 1.0) @ x / len(x)
        there = weights + RADIUS * found / np.linalg.norm(found)
        weights = weights - RATE * 2 * (x @ there - 1.0) @ x / len(x)
    return weights


def test_sharpness_aware_minimisation_averages_twice_and_policies_see_the_last_loss():
    seen = []

    @kf.policy
    def looking(training):
        return kf.control.always().call(lambda _, loss: seen.append(loss), training.mean_loss)

    optimizer = keras.optimizers.SGD(RATE)
    model, training = attached(optimizer, policies=[looking()])
    x = points(2) * 0.5

    @training.step(averages=2)
    def step(x):
        (found,), loss = gradients_of(model, x)
        (found,) = training.average([found], loss=loss)
        far = RADIUS * found / tf.norm(found)
        weights = model.trainable_variables[0]
        weights.assign_add(far)
        gradients, there = gradients_of(model, x)
        gradients = training.average(gradients, loss=there)
        weights.assign_sub(far)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return there

    told = [float(step(x)) for _ in range(5)]
    np.testing.assert_allclose(np.ravel(model.weights[0]), sharp_by_hand(5, x), rtol=1e-5)
    assert training.traces() == 1
    assert len(seen) >= 2
    assert all(np.min(np.abs(np.array(told) - one)) < 1e-6 for one in seen), "the loss of the second average"


def test_each_message_weights_by_samples_and_only_the_last_one_is_the_steps():
    def of_peer(rank: int, attachment: LocalAttachment) -> Any:
        # Four samples of five come: the means are corrected.
        averaging = averaging_of([], rank, attachment, size=2, samples=1.0 + 2 * rank, batch=5, made=fused)

        @tf.function
        def step() -> Any:
            return average_before_last(averaging, [tf.constant([4.0 * rank]), None], number=1)

        (mean, nothing), waited_s = step()
        assert nothing is None
        assert averaging.graph_state.metrics.total_samples.numpy() == 0.0
        return float(mean[0]), float(waited_s)

    found = on_peers(2, of_peer)
    assert [mean for mean, _ in found] == [3.0, 3.0]
    assert min(waited for _, waited in found) >= 0.0


def test_a_step_that_fails_after_its_first_average_is_undone():
    first, second = keras.optimizers.Adam(RATE), keras.optimizers.SGD(RATE)
    model = linear_model()
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    first.build(model.trainable_variables)
    second.build(other.trainable_variables)
    together = keras.Model()
    together.parts, together.built = [model, other], True
    training = kf.attach(together, [first, second])
    counted = tf.Variable(0)

    @training.step(averages=2)
    def step(x, may):
        gradients, loss = gradients_of(model, x)
        first.apply_gradients(zip(training.average(gradients, loss=loss), model.trainable_variables, strict=True))
        counted.assign_add(1)
        # Not before the first of them was applied.
        with tf.control_dependencies([model.trainable_variables[0].value.read_value(), counted.read_value()]):
            checked = tf.debugging.assert_equal(may[0], 1.0, message="not this time")
        with tf.control_dependencies([checked]):  # it fails in place of the message
            x = tf.identity(x)
        gradients, loss = gradients_of(other, x)
        second.apply_gradients(zip(training.average(gradients, loss=loss), other.trainable_variables, strict=True))

    variables = [*model.weights, *other.weights, *first.variables, *second.variables]

    def held() -> list[bytes]:
        return [np.asarray(one).tobytes() for one in [*variables, counted]]

    fine, not_fine = np.ones(2, np.float32), np.zeros(2, np.float32)
    step(points(2), fine)
    before = held()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not this time"):
        step(points(2), not_fine)
    assert held() == before
    step(points(2), fine)
    assert int(counted) == 2
    assert int(first.iterations) == int(second.iterations) == 2


def averaging(declared: int, calls: int) -> tuple[Any, Any]:
    """A run, and its step, which averages so often; ``declared`` is the number that it says."""
    model, training = attached()

    @training.step(averages=declared)
    def step(x):
        gradients, loss = gradients_of(model, x)
        return [training.average(gradients, loss=loss) for _ in range(calls)]

    return training, step


@pytest.mark.parametrize(("declared", "calls"), [(1, 0), (1, 2), (2, 1), (2, 3), (3, 2)])
def test_an_average_too_few_or_too_many_is_refused(declared, calls):
    _, step = averaging(declared, calls)
    message = rf"@training\.step\(averages={declared}\) calls training\.average\(\) {calls} times"
    if declared == 1:
        message = rf"average\(\) {calls} times; it must do so exactly once.*@training\.step\(averages=\.\.\.\)"
    with pytest.raises(UsageError, match=message):
        step(points(2))


@pytest.mark.parametrize("averages", [1, 2])
def test_an_average_under_a_condition_is_refused(averages):
    model, training = attached()

    @training.step(averages=averages)
    def step(x):
        gradients, loss = gradients_of(model, x)
        if tf.reduce_sum(x) > 0.0:
            training.average(gradients, loss=loss)

    with pytest.raises(UsageError, match="under a condition or in a loop of the graph"):
        step(points(2))


def test_several_averages_are_made_in_the_step_itself():
    model, training = attached()
    inside = tf.function(lambda gradients: training.average(gradients, loss=0.0))

    @training.step(averages=2)
    def step(x):
        gradients, _ = gradients_of(model, x)
        return inside(gradients), training.average(gradients, loss=0.0)

    with pytest.raises(UsageError, match=r"in a tf\.function inside of a step with averages=2"):
        step(points(2))

    _, fine = averaging(2, 2)
    fine(points(2))
    with pytest.raises(UsageError, match="cannot be undone; call it from plain Python"):
        tf.function(lambda x: fine(x))(tf.constant(points(2)))


def test_several_averages_beside_micro_batches_are_refused():
    training, step = averaging(2, 2)
    batches = training.batches(points(8), batch_size=4, epochs=1, seed=0, max_local_batch_size=2)
    batch = next(batches)
    with pytest.raises(UsageError, match=r"averages=2\) beside training\.batches\(max_local_batch_size"):
        step(batch)


@pytest.mark.parametrize("averages", [0, -1, 1.5, True, "2"])
def test_a_number_of_averages_is_an_integer_of_at_least_one(averages):
    _, training = attached()
    with pytest.raises(UsageError, match="must be an integer of at least 1"):
        training.step(averages=averages)


def two_optimizers() -> tuple[Any, Any, list[Any]]:
    """A run whose step averages for two optimizers, the step, and all that the optimizers keep."""
    first, second = keras.optimizers.Adam(RATE), keras.optimizers.SGD(RATE, momentum=0.5)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    parts = [layer.trainable_variables for layer in model.layers]
    for optimizer, variables in zip((first, second), parts, strict=True):
        optimizer.build(variables)
    training = kf.attach(model, [first, second])

    @training.step(averages=2)
    def step(x):
        for optimizer, variables in zip((first, second), parts, strict=True):
            with tf.GradientTape() as tape:
                loss = loss_of(model, x)
            gradients = training.average(tape.gradient(loss, variables), loss=loss)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return training, step, [*model.weights, *first.variables, *second.variables]


def test_the_state_of_several_optimizers_is_state_of_the_job(tmp_path):
    training, step, kept = two_optimizers()
    shared = training._run.state.classes.shared
    assert {id(one.value) for one in kept} <= {id(one) for one in shared.values()}
    for done, x in enumerate(training.batches(points(8), batch_size=4, epochs=2, seed=0), start=1):
        step(x)
        if done == 2:
            then = [np.asarray(one).copy() for one in kept]
            training.checkpoint(tmp_path)
            break
    training.finish()
    training, _, kept = two_optimizers()
    training.resume(tmp_path)
    training._run.checkpoints.begin({})
    for one, value in zip(kept, then, strict=True):
        np.testing.assert_array_equal(np.asarray(one), value, err_msg=one.path)
    assert len({np.asarray(one).tobytes() for one in kept}) > 6, "slots have moved"
