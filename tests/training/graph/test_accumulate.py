"""Micro-batches: many calls of the step, one update, and the same one as with the whole batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.runtime.core.sample_slices import Stamp
from tests.training.linear import linear_model, linear_run, numbers_of, points, running

X = np.random.default_rng(0).normal(size=(23, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1


@dataclass
class Trained:
    """What a run came to: of each call the samples, of each step the loss, and the state behind it."""

    state: list[np.ndarray] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)
    seen: list[tuple[float, ...]] = field(default_factory=list)
    training: Any = None


def watching(seen: list[tuple[float, ...]]) -> Any:
    """A policy that writes down what every step offers."""

    @kf.policy
    def watch(training):
        norms = [kf.ops.norm_squared(one) for one in (training.grads, training.mean_grads)]
        total = kf.ops.all_reduce(training.samples, "sum")
        values = (training.step, training.mean_loss, total, kf.ops.all_reduce(norms[0], "sum"), norms[1])
        return kf.control.always().call(lambda control, *values: seen.append(values), *values)

    return watch()


def trained(optimizer: Any, *, epochs: int = 2, around: Any = None, watched: bool = False, **given: Any) -> Trained:
    """Two epochs of a float64 model; ``around`` is called with the run, its marked step and each batch."""
    came = Trained()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,), dtype="float64"), keras.layers.Dense(1, dtype="float64")])
    policies = [watching(came.seen)] if watched else []
    came.training = training = kf.attach(model, optimizer, policies=policies)

    @training.step
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)[:, 0] - y))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        gradients, _ = tf.clip_by_global_norm(gradients, 5.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return gradients[0]

    around = around or (lambda training, step, *batch: step(*batch))
    for x, y in training.batches((X, Y), batch_size=10, epochs=epochs, seed=3, **given):
        gradient = around(training, step, x, y)
        if gradient is not kf.Training.SKIPPED:
            came.calls.append(len(x))
            came.gradients.append(np.asarray(gradient))
    came.state = [np.asarray(one) for one in [*model.weights, *optimizer.variables]]
    return came


MAKE = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "Adam": lambda: keras.optimizers.Adam(0.05, use_ema=True, ema_overwrite_frequency=3, weight_decay=0.01),
}


@cache
def whole_of(name: str) -> Trained:
    """The same run on whole batches."""
    return trained(MAKE[name]())


def assert_same_state(cut: Trained, whole: Trained) -> None:
    for one, other in zip(whole.state, cut.state, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most", "calls"),
    [("Adam", 4, [4, 4, 2, 4, 4, 2, 3]), ("SGD", 9, [9, 1, 9, 1, 3]), ("SGD", 10, [10, 10, 3])],
)
def test_uneven_micro_batches_give_the_updates_of_whole_batches(name, most, calls):
    whole, cut = whole_of(name), trained(MAKE[name](), max_local_batch_size=most)
    assert whole.calls == [10, 10, 3] * 2
    assert cut.calls == calls * 2
    assert_same_state(cut, whole)
    assert cut.training.traces() == 1
    assert int(cut.training._run.graph_state.progress.step) == 6


@pytest.mark.slow
def test_monitors_see_the_share_and_not_its_pieces():
    whole, cut = (trained(MAKE["SGD"](), epochs=4, watched=True, **one) for one in ({}, {"max_local_batch_size": 3}))
    assert len(whole.seen) >= 5
    np.testing.assert_allclose(cut.seen, whole.seen, rtol=1e-5)
    assert [samples for _, _, samples, _, _ in cut.seen][:3] == [10, 3, 10]


@kf.policy
def measuring(training):
    """A policy that reads the noise scale."""
    noise = kf.monitor.gradient_noise_scale(training, decay=1.0)
    return kf.control.always().when(noise < -1.0).stop()


def after(run: Any, *batches: np.ndarray) -> dict[str, float]:
    """The record of a step whose micro-batches have these points."""
    for micro, x in enumerate(batches):
        given = tf.constant(x if len(x) else points(1))
        run.training._calls.stamps.put([given], Stamp(-1, 0, 0, micro, len(batches), not len(x)))
        run.step(given)
    return {name: value for (_, name), value in numbers_of(run.training._run.graph_state).items()}


@pytest.mark.parametrize("scaled", [False, True])
def test_micro_batches_show_the_variance_of_the_gradients_on_one_peer(scaled):
    """The gradient of the linear model is the mean of its inputs: the variance of the inputs by hand."""
    optimizer = keras.optimizers.SGD(1.0)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    run = micro_run(optimizer=optimizer, policies=[measuring()])
    x = np.array([[1, 0], [3, 2], [2, 7], [4, 1], [9, 5]], np.float32)
    unscaled = 64 if scaled else 1  # the model's loss is not scaled: its gradient counts an eighth

    def variance(*parts: np.ndarray) -> float:
        centre = np.concatenate(parts).mean(0)
        return sum(len(one) * np.sum((one.mean(0) - centre) ** 2) for one in parts) / (len(parts) - 1)

    found = after(run, x[:2], x[2:4], x[4:])
    assert (found["micro_batches"], found["samples"]) == (3, 5)
    expected = variance(x[:2], x[2:4], x[4:])
    assert found["micro_batch_variance"] == pytest.approx(expected / unscaled, rel=1e-6)
    assert found["noise_scale"] == pytest.approx(expected / (np.sum(x.mean(0) ** 2) - expected / 5), rel=1e-5)
    # A share that is one micro-batch, or whose other micro-batches are empty, has no variance; the average stays.
    for batches in ([x[:3]], [x[:3], x[:0]]):
        found = after(run, *batches)
        assert found["micro_batches"] == 1
        assert np.isnan([found["micro_batch_variance"], found["noise_scale"]]).all()
    found = after(run, x[:3], x[3:], x[:0])
    assert found["micro_batches"] == 2
    assert found["micro_batch_variance"] == pytest.approx(variance(x[:3], x[3:]) / unscaled, rel=1e-6)


@pytest.mark.slow
def test_on_one_peer_the_batch_grows_by_accumulation():
    """Micro-batches show a noise scale above the batch; later steps have more of them, with one trace."""
    rng = np.random.default_rng(1)
    x = np.stack([rng.normal(3.0, 9.0, 4000), np.ones(4000)], axis=1).astype(np.float32)  # S is 81, |G|² is 10
    policy = kf.policies.gns_batch(grow="batch", max_batch=6, every=20)
    run = linear_run(policies=[policy], optimizer=keras.optimizers.SGD(1e-3))
    calls = []
    for (batch,) in run.training.batches((x,), batch_size=4, epochs=1, seed=2, max_local_batch_size=2):
        if run.step(batch) is not kf.Training.SKIPPED:
            calls.append(len(batch))
    assert int(run.training._run.graph_state.view.global_batch_size) == 6
    assert (sum(calls), max(calls), run.training.traces()) == (4000, 2, 1), "each sample once"


def test_what_travels_with_the_gradients_has_no_part_in_their_variance():
    @kf.policy
    def publishing(training):
        return kf.control.always().when(kf.ops.all_reduce(training.published("mark"), "mean") < 0.0).stop()

    def publish(training: Any, x: Any) -> None:
        training.publish("mark", 1000.0 * tf.reduce_sum(x))

    alone, beside = micro_run(policies=[measuring()]), micro_run(policies=[measuring(), publishing()], before=publish)
    variance, same = (after(run, points(2), points(3))["micro_batch_variance"] for run in (alone, beside))
    assert variance == same == pytest.approx(0.3)
    unread = after(micro_run(policies=[publishing()], before=publish), points(2), points(3))
    assert np.isnan(unread["micro_batch_variance"]), "no policy reads it: the gradients are not read once more"


@pytest.mark.slow
def test_a_micro_batch_that_is_fed_twice_makes_its_step_begin_again():
    turns = []

    def stutter(training, step, x, y):
        turns.append(len(x))
        got = step(x, y)
        if len(turns) == 1:
            assert step(x, y) is not kf.Training.SKIPPED, "the first one may begin again"
        if len(turns) == 2:
            assert step(x, y) is kf.Training.SKIPPED, "it is not the turn of this one any more"
        return got

    assert_same_state(trained(MAKE["SGD"](), max_local_batch_size=4, around=stutter), whole_of("SGD"))
    assert turns[:5] == [4, 4, 4, 4, 2]


@pytest.mark.slow
def test_what_was_accumulated_for_a_view_that_is_over_is_dropped():
    turns = []

    def regroup(training, step, x, y):
        turns.append(len(x))
        got = step(x, y)
        if len(turns) == 2:  # the others have regrouped, as when a peer is lost
            training._run.graph_state.view.version.assign(5)
        return got

    assert_same_state(trained(MAKE["SGD"](), max_local_batch_size=4, around=regroup), whole_of("SGD"))
    assert turns[:6] == [4, 4, 2, 4, 4, 2], "the third was cut for the view that is over: the step refuses it"


def fed(run: Any, counts: list[int], *, last: int) -> list[Any]:
    """What the step gives for micro-batches of so many points each, of which number ``last`` is the last."""
    given = []
    for micro, count in enumerate(counts):
        x = tf.constant(points(9)[:count])
        run.training._calls.stamps.put([x], Stamp(-1, 0, 0, micro, last + 1))
        given.append(np.asarray(run.step(x)).tolist())
    return given


def micro_run(*layers: Any, **given: Any) -> Any:
    run = linear_run(*layers, **given)
    run.training.batches(points(9), batch_size=9, epochs=1, seed=0, max_local_batch_size=3)
    return run


def test_micro_batches_without_samples_add_nothing():
    """Peers with fewer samples than others have empty ones, whose mean is NaN."""
    run = micro_run()
    assert fed(run, [4, 0, 0], last=2) == [[0, 0], [0, 0], [1.5, 1.0]]
    assert fed(run, [0, 2, 0], last=2)[-1] == [0.5, 1.0]
    assert run.weights.tolist() == [-2.0, -2.0]


def test_a_peer_without_any_samples_in_a_step_moves_nothing():
    run = micro_run(keras.layers.BatchNormalization())
    before = [np.asarray(one).tolist() for one in run.model.weights]
    assert fed(run, [0, 0], last=1)[-1] == [0.0, 0.0]
    assert [np.asarray(one).tolist() for one in run.model.weights] == before


def test_half_gradients_are_summed_wider_and_whole_numbers_are_averaged():
    training = kf.attach(linear_model(), keras.optimizers.SGD(1.0))
    training.batches(points(9), batch_size=9, epochs=1, seed=0, max_local_batch_size=3)

    @training.step
    def step(x):
        ones = tf.cast(tf.shape(x)[0], tf.float16) * tf.constant([20000.0], tf.float16)
        return training.average([ones, tf.shape(x)[:1]], loss=0.0)

    for micro, count in enumerate([2, 3, 1]):
        x = tf.constant(points(count))
        training._calls.stamps.put([x], Stamp(-1, 0, 0, micro, 3))
        half, whole = step(x)
    # 2, 3 and 1 samples with these "gradients": means over six samples.
    assert float(half[0]) == pytest.approx(20000 * (4 + 9 + 1) / 6, rel=1e-3)
    assert whole.numpy().tolist() == [(4 + 9 + 1) // 6]


@pytest.mark.parametrize("eagerly", [False, True])
def test_the_optimizer_is_the_users_own_again_after_each_step(eagerly):
    run = micro_run()
    with running(eagerly=eagerly):
        fed(run, [2, 1], last=1)
    assert "apply" not in vars(run.optimizer)
    assert run.weights.tolist() == pytest.approx([-1 / 3, -1.0])


def test_gradients_of_an_open_shape_are_refused():
    run = micro_run(before=lambda training, x: training.average([x], loss=0.0))
    with pytest.raises(UsageError, match=r"open shapes \['\(None, 2\)'\]"):
        run.step(points(2))


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=4),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0, gradient_accumulation_steps=4)),
    ],
)
def test_an_optimizer_that_accumulates_itself_is_refused_beside_it(optimizer):
    with pytest.raises(UsageError, match="gradient_accumulation_steps=4"):
        micro_run(optimizer=optimizer)


def test_a_loss_scale_goes_on_under_micro_batches():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
    run = micro_run(optimizer=optimizer)
    given = fed(run, [3, 1], last=1)  # the model's loss is not scaled: its gradient counts an eighth
    assert given == [[0.0, 0.0], [0.75, 1.0]]
    assert run.weights.tolist() == [-0.75 / 8, -1 / 8]
