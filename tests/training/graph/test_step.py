"""The compiled step: its order, its stamp, its one trace."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu import control, policy
from kungfu.errors import UsageError
from kungfu.runtime.core.barrier import BarrierResult, Decision
from kungfu.runtime.core.view import Peer, View
from kungfu.training.loop.barrier import enter
from tests.training.linear import linear_model, linear_run, numbers_of, points, running


def stateful_run(**given):
    return linear_run(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=3), **given)


def everything(run):
    """All that a step may move, as bytes by name."""
    variables = [*run.model.variables, *run.optimizer.variables]
    return {f"{index} {one.path}": np.asarray(one).tobytes() for index, one in enumerate(variables)}


def test_the_time_of_a_step_that_follows_a_barrier_is_not_known():
    """As on a modelled cluster: tests/testing/test_simulated_barrier.py."""
    hooked = policy(lambda training: control.always().when(training.step == 4).call(lambda control: None))()
    run, unknown = linear_run(policies=[hooked]), {"busy_seconds": [], "step_seconds": []}
    for number in range(1, 11):
        run.step(points(2))
        numbers = numbers_of(run.training._run.graph_state)
        for name in unknown:
            unknown[name] += [number] if np.isnan(numbers["local", name]) else []
    # The barrier is held after step 5.
    assert unknown == {"busy_seconds": [1, 6], "step_seconds": [1, 2, 7]}


def test_the_time_of_a_step_in_another_view_is_not_known():
    run = linear_run()
    run.step(points(2))
    times, terms = run.training._run.graph_state.times, run.training._run.terms
    times.step_seconds.assign(0.5)
    enter(run.training._run, BarrierResult(None, Decision(View(2, (Peer(0, ""),)), terms), 0), terms)
    assert np.isnan(times.step_seconds.numpy())


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_stale_batch_is_skipped_and_changes_nothing(eagerly):
    run = stateful_run(optimizer=keras.optimizers.Adam(0.1))
    with running(eagerly=eagerly):
        loop = run.training.batches(points(12), batch_size=4, epochs=1, seed=0)
        first = next(loop)
        run.step(first)
        second = next(loop)
        assert run.step(second) is not kf.Training.SKIPPED
        before = everything(run)
        assert run.step(second) is kf.Training.SKIPPED
        assert run.step(first) is kf.Training.SKIPPED
        assert everything(run) == before
        assert run.step(next(loop)) is not kf.Training.SKIPPED
        assert everything(run) != before


def test_a_batch_is_stale_too_behind_a_loop_that_moved_the_position_inside_the_graph():
    run = linear_run()
    batches = run.training.batches(points(12), batch_size=2, epochs=1, seed=0)
    run.step(next(batches))
    inside = tf.function(run.step)
    ahead = next(batches)
    inside(points(2))
    before = everything(run)
    assert run.step(ahead) is kf.Training.SKIPPED
    assert everything(run) == before
    assert run.step(next(batches)) is not kf.Training.SKIPPED
    ahead = next(batches)
    inside(points(2))  # traced long ago: no Python of the step's runs here
    assert run.step(ahead) is kf.Training.SKIPPED


def test_the_barrier_sees_what_its_step_did_to_weights_and_to_a_variable():
    own, seen = tf.Variable(0), []
    looking = policy(lambda training: control.every(2).call(lambda _: seen.append((*run.weights.tolist(), int(own)))))
    run = linear_run(policies=[looking()], after=lambda training, gradients: own.assign_add(1))
    for _ in range(9):
        run.step(np.ones((1, 2), np.float32))
    # Each step takes 1 off. Rules fire in steps 2, 4, 6, 8; the barrier is held after the update of the step behind.
    assert seen == [(-3.0, -3.0, 3), (-5.0, -5.0, 5), (-7.0, -7.0, 7), (-9.0, -9.0, 9)]


@pytest.mark.parametrize("given", [None, 7, "tensors"])
def test_a_step_gives_what_its_function_returns(given):
    model = linear_model()
    training = kf.attach(model, keras.optimizers.SGD(1.0))

    @training.step
    def step(x):
        training.average([tf.constant(1.0)], loss=0.0)
        return {"x": x + 1, "pair": (tf.shape(x)[0], None)} if given == "tensors" else given

    got = step(points(2))
    if given == "tensors":
        got = {"x": np.asarray(got["x"]).tolist(), "pair": (int(got["pair"][0]), got["pair"][1])}
    assert got == ({"x": [[1.0, 2.0], [2.0, 2.0]], "pair": (2, None)} if given == "tensors" else given)


def test_steps_without_loader_take_batches_of_any_size_in_one_trace():
    run = linear_run()
    for count in (1, 5, 2, 9):
        got = run.step(points(count))
        np.testing.assert_allclose(got, points(count).mean(axis=0), rtol=1e-6)
    assert run.training.traces() == 1


def test_the_samples_of_a_step_are_counted_where_a_scalar_comes_first():
    model = linear_model()
    seen = []

    @kf.policy
    def counting(training):
        return kf.control.always().call(lambda control, samples: seen.append(samples), training.total_samples)

    training = kf.attach(model, keras.optimizers.SGD(1.0), policies=[counting()])

    @training.step
    def step(factor, x):
        training.average([factor], loss=0.0)

    for _ in range(2):
        step(2.0, points(5))
    assert seen == [5.0]


def test_nests_and_keywords_reach_the_function_as_they_are():
    model = linear_model()
    training = kf.attach(model, keras.optimizers.SGD(1.0))

    @training.step
    def step(batch, *, weight):
        training.average([tf.constant(1.0)], loss=0.0)
        return batch["x"] * weight, batch["y"][0]

    x, y = step({"y": [np.arange(3)], "x": points(3)}, weight=np.full((3, 1), 2.0, np.float32))
    assert np.asarray(x).tolist() == (2 * points(3)).tolist()
    assert np.asarray(y).tolist() == [0, 1, 2]


def test_steps_run_eagerly_like_traced():
    losses = []
    for eagerly in (False, True):
        run = stateful_run(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
        with running(eagerly=eagerly):
            for x in run.training.batches(points(10), batch_size=4, epochs=2, seed=3):
                run.step(x)
        losses.append(run.weights)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert np.any(losses[0] != 0)


def test_a_step_whose_first_call_is_inside_another_graph_is_refused_clearly():
    with pytest.raises(UsageError, match=r"inside a tf\.function before it was ever called outside"):
        tf.function(linear_run().step)(tf.ones([2, 2]))


def test_a_hook_that_fails_makes_the_loop_of_steps_fail_and_no_step_runs_after_it():
    def fail(control: object) -> None:
        raise RuntimeError("the hook gave up")

    run = linear_run(policies=[policy(lambda training: control.every(2).call(fail))()])
    run.step(points(4))

    @tf.function
    def loop(x: tf.Tensor) -> None:
        for _ in tf.range(9):
            run.step(x)

    with pytest.raises(tf.errors.OpError, match="the hook gave up"):
        loop(tf.constant(points(4)))
    assert int(run.training._run.graph_state.progress.step) == 3
