"""Averages of models in place of gradients; whole jobs are in tests/jobs/test_local_steps.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.control import average_models
from kungfu.errors import PolicyError, UsageError
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.runtime.checkpoints.manifest import Manifest
from kungfu.runtime.core.terms import Terms
from kungfu.testing import ClusterModel, Start, run_on_model
from kungfu.training.graph.average import SummedTotals, average
from kungfu.training.graph.model_average import ModelAverage
from kungfu.training.graph.step_report import PlannedEpochs, StepPosition
from kungfu.training.loop import barrier
from kungfu.training.loop.attach import attach_built, build, refuse_sums
from kungfu.training.loop.job_connection import JobConnection
from tests.training.graph.test_fed import Losing
from tests.training.linear import linear_model, points, shown
from tests.training.peers import averaging_of, on_peers


def attached(
    *, every: int, policies: Any = (), optimizer: Any = None, averages: int = 1, added: float = 0.0
) -> tuple[Any, Any, Any]:
    """A linear model that trains alone with averages of models; the model, the run, and its step."""
    model, optimizer = linear_model(), optimizer or keras.optimizers.SGD(0.1, momentum=0.5)
    training = kf.attach(model, optimizer, policies=policies, sync=average_models(every=every))

    @training.step(averages=averages)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - 1.0) ** 2 + added * x[:, :1])
        grads = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    return model, training, step


@pytest.mark.parametrize("max_local_batch_size", [None, 3], ids=["whole shares", "micro-batches"])
def test_alone_a_model_trains_as_ever_and_rules_act_in_steps_that_average(max_local_batch_size):
    called = list[tuple[int, int]]()

    @kf.policy
    def looking(training):
        return kf.control.every(4).call(lambda _, step, size: called.append((step, size)), training.step, training.size)

    x = np.random.default_rng(0).normal(size=(56, 2)).astype(np.float32)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    model, training, step = attached(every=3, policies=[looking()], optimizer=optimizer)
    given = {"batch_size": 8, "epochs": 2, "seed": 0, "max_local_batch_size": max_local_batch_size}
    for batch in training.batches(x, **given):
        step(batch)
    # An epoch has 7 steps: averages after steps 3, 6, 7 (its end), 10, 13 and 14. Due after 4, 8 and 12.
    assert called == [(6, 1), (10, 1), (13, 1)]
    assert training.step_number == 14
    assert int(optimizer.iterations) == 14
    weights, momenta = np.zeros(2), np.zeros(2)
    order = [np.random.Generator(np.random.PCG64([0, epoch])).permutation(56) for epoch in range(2)]
    for part in np.concatenate(order).reshape(14, 8):
        own = x[part].astype(np.float64)
        momenta = 0.5 * momenta - 0.1 * 2 * (own @ weights - 1.0) @ own / 8
        weights = weights + momenta
    np.testing.assert_allclose(np.asarray(model.weights[0]).ravel(), weights, rtol=1e-5, atol=1e-6)
    assert training.traces() == 1


@kf.policy
def widening(training, *, after, every):
    return kf.control.always().after(after).synchronise(every=every)


@kf.policy
def looking_every(training, *, steps, into):
    return kf.control.every(steps).call(lambda _, step: into.append(step), training.step)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_rule_sets_the_steps_between_averages_and_the_model_of_a_job_does_the_same(steps):
    called, modelled, given = list[int](), list[int](), {"after": 4, "every": 3}
    _, training, step = attached(every=1, policies=[widening(**given), looking_every(steps=steps, into=called)])
    for batch in training.batches(points(56), batch_size=8, epochs=4, seed=0):
        step(batch)
    start = Start(size=1, global_batch_size=8, epoch_samples=56, job_samples=224)
    policies = [widening(**given), looking_every(steps=steps, into=modelled)]
    run = run_on_model(policies, ClusterModel({1: 100}, steps=99, start=start), sync=average_models(every=1))
    assert called == modelled
    # The rule fires in step 5, and an epoch has 7 steps.
    averages = [1, 2, 3, 4, 5, 7, 10, 13, 14, 17, 20, 21, 24, 27, 28]
    if steps == 2:
        assert called == [one for one in averages if one not in (1, 3, 5, 21)], "in the window of 21 nothing was due"
    assert {one.step for one in run.decisions} <= {*averages}
    assert training._run.terms.average_every == training._run.models.every == 3


def test_a_resumed_run_takes_the_interval_of_the_checkpoint_if_a_policy_may_set_it():
    for policies, found in (([widening(after=4, every=3)], 3), ([], 2)):
        _, training, step = attached(every=2, policies=policies)
        step(points(2))
        run = training._run
        run.checkpoints._resumed = Manifest(5, 1, 2, Terms(2, 2.0, average_every=3))
        assert barrier._first_terms(run, 1).average_every == found


def test_a_rule_for_averages_is_refused_where_gradients_are_averaged():
    with pytest.raises(PolicyError, match=r"policy 'widening' asks for an average of models .*attach with sync="):
        kf.attach(linear_model(), keras.optimizers.SGD(), policies=[widening(after=4, every=3)])


def test_the_mean_loss_is_that_of_all_samples_since_the_last_average():
    @kf.policy
    def watching(training):
        return kf.control.always().when((training.mean_loss + 1.0).named("more") < -1.0).stop()

    given = {"policies": [watching()], "optimizer": keras.optimizers.SGD(0.0), "added": 1.0}
    _, training, step = attached(every=3, **given)
    found = []
    for count in (1, 2, 3, 4, 4, 2):  # the loss of a sample [i, 1] is 1 + i, as the weights stay 0
        step(points(count))
        found.append(shown(training, "more") if training.step_number % 3 == 0 else None)
    # Without a loader the first batch, of 1 sample, is the batch in force; an average counts what the others brought.
    first, last = 1 + (0 + 1 + 3) / 6, 1 + (6 + 6 + 1) / 10
    assert [one for one in found if one] == pytest.approx([1 + first, 1 + last])
    assert int(training._run.graph_state.progress.trained) == 16


def position(step: int, *, offset: int = 0) -> StepPosition:
    return StepPosition(step, epoch=0, offset=offset, micro=0, version=1, size=2, rank=0, global_batch_size=12)


@pytest.mark.parametrize(
    ("drops", "offset", "steps"),
    [(False, 12, 0), (False, 84, 0), (False, 96, 2), (True, 72, 0), (True, 84, 2)],
    ids=["inside", "one more", "the rest", "dropped: inside", "dropped: the last whole batch"],
)
def test_the_last_step_of_an_epoch_averages(drops, offset, steps):
    averaging = averaging_of([], 0, LocalAttachment(), size=1, batch=12.0)
    models = ModelAverage(5, averaging.graph_state, averaging.attachment)
    models.averaged(at=10)
    models.announce(position(11, offset=offset), PlannedEpochs(100, 3, drops))
    assert (int(models.window.steps), models.is_synchronising) == (steps, steps > 0)


def test_every_step_of_that_number_averages_whatever_came_between():
    averaging = averaging_of([], 0, LocalAttachment(), size=1, batch=12.0)
    models = ModelAverage(3, averaging.graph_state, averaging.attachment)
    found = []
    for step in range(8):
        models.announce(position(step), None)
        found.append(int(models.window.steps))
        if models.is_synchronising:
            models.averaged(at=step + 1)
        if step == 3:  # a loss: the survivors have averaged what they held
            models.restart(at=step + 1)
    assert found == [0, 0, 3, 0, 0, 0, 3, 0]


def test_an_average_weighs_models_by_samples_and_carries_the_requests_of_all_peers():
    samples = [1.0, 5.0, 2.0]

    def act(rank: int, attachment: LocalAttachment) -> Any:
        averaging = averaging_of([], rank, attachment, size=3, batch=8.0)
        posts = averaging.graph_state.posts
        models = ModelAverage(4, averaging.graph_state, attachment)
        weight, half, count = (tf.Variable(one) for one in ([[rank, 1.0]], tf.cast(rank, tf.bfloat16), rank))
        models.shared = [weight, half, count]
        models.covers(None)
        models.window.weight.assign(samples[rank] / 8.0)
        models.window.samples.assign(samples[rank])
        posts.changes.post(int(rank == 1))
        models.average()
        left = [int(posts.changes.carried), int(posts.everywhere), float(models.window.samples)]
        return weight.numpy().ravel().tolist(), float(half), int(count), left

    mean = (1 * 0 + 5 * 1 + 2 * 2) / 8
    for rank, (weight, half, count, left) in enumerate(on_peers(3, act)):
        assert weight == [mean, 1.0]
        assert half == mean
        assert count == rank, "a number of steps is no mean"
        assert left == [int(rank == 1), 1, 0.0]


def test_what_an_average_of_models_does_not_fit_is_refused():
    with pytest.raises(UsageError, match=r"attach\(sync='models'\): takes \"gradients\" or kf.control.average_models"):
        kf.attach(linear_model(), keras.optimizers.SGD(), sync="models")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(UsageError, match=r"beside the optimizer .*, which scales the loss"):
        kf.attach(linear_model(), scaled, sync=average_models(every=2))
    with pytest.raises(UsageError, match=r"averages=2\) beside attach\(sync="):
        attached(every=2, averages=2)
    _, training, step = attached(every=2)
    with pytest.raises(UsageError, match=r"training\.metrics\(\) in a run with sync="):
        training.metrics(keras.metrics.Mean())
    step(points(2))
    with pytest.raises(UsageError, match=r"was called inside a tf\.function with sync="):
        tf.function(lambda: step(points(2)))()


class Total(keras.layers.Layer):
    """Counts the samples of all peers."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(), trainable=False, aggregation="sum", name="seen")

    def call(self, x: Any) -> Any:
        self.seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return x


def test_what_peers_exchange_in_every_step_or_between_two_steps_is_refused():
    given = {"policies": (), "seed": 0, "budget": None, "combine": {}, "sync": average_models(every=2)}
    model, optimizer = linear_model(Total()), keras.optimizers.SGD()
    build(model, [optimizer])
    run = attach_built(JobConnection(None), model, [optimizer], **given).run
    run.memory.share(run.trace)  # as in a job
    with pytest.raises(UsageError, match=r"the variable .*seen.* of a layer is declared \"sum\""):
        refuse_sums(run)
    _, training, _ = attached(every=2)
    files = kf.data.partitions(["a", "b"], iter, counts=[4, 4])
    with pytest.raises(UsageError, match=r"kf\.data\.partitions in a run with sync="):
        training.batches(files, batch_size=2, epochs=1, seed=0)


def test_sums_over_peers_arrive_with_the_last_step_of_a_window_whole_and_exact():
    # By step, and by peer; the last step of each window sends, and a peer without samples counts for nothing.
    samples = [[2, 1, 0], [1, 1, 1], [2, 0, 1], [1, 0, 0], [0, 1, 1]]
    windows = [0, 0, 3, 0, 2]
    large = 2**40

    def act(rank: int, attachment: LocalAttachment) -> Any:
        averaging = averaging_of([], rank, attachment, size=3, batch=3.0)
        averaging = replace(averaging, models=ModelAverage(3, averaging.graph_state, attachment))
        found = []
        for own, steps in zip(samples, windows, strict=True):
            averaging.graph_state.metrics.samples.assign(own[rank])
            averaging.models.window.steps.assign(steps)
            totals = [tf.constant([1.5, rank]), tf.constant(large + rank, tf.int64)]
            summed = [SummedTotals(totals[:1], found.extend), SummedTotals(totals[1:], found.extend)]
            average(averaging, [tf.constant([1.0])], loss=tf.constant(0.0), summed=summed)
            if steps:
                averaging.models.window.clear()
        return [one.numpy().tolist() for one in found]

    def expected(*steps: int) -> list[Any]:
        had = [rank for step in steps for rank in range(3) if samples[step][rank]]
        return [[1.5 * len(had), sum(had)], large * len(had) + sum(had)]

    nothing = [[0.0, 0.0], 0]
    for found in on_peers(3, act):
        assert found == [*nothing, *nothing, *expected(0, 1, 2), *nothing, *expected(3, 4)]


def test_a_step_whose_models_do_not_arrive_has_moved_nothing():
    called = list[int]()
    model, training, step = attached(every=1, policies=[looking_every(steps=1, into=called)])
    run = training._run
    losing = Losing("models", lambda: bool(run.steps()) or bool(run.graph_state.posts.others.carried.numpy()))
    run.models._attachment = losing
    batches = training.batches(points(4), batch_size=4, epochs=2, seed=0)
    with pytest.raises(tf.errors.OpError, match="a peer is lost"):
        step(first := next(batches))
    position, (weights, *_) = run.graph_state.progress.position(), model.weights
    assert (run.steps(), position.epoch, int(run.graph_state.progress.trained), called) == (0, 0, 0, [])
    assert not np.any(weights)
    losing.fails = False
    step(first)
    assert (run.steps(), called) == (1, [1])
    assert np.any(weights)
