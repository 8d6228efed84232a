"""The loader: slices of one agreed order, each sample once an epoch."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from tests.training.linear import linear_model, linear_run, points


def walked(run, data, **given):
    """The batches that were trained on, as index arrays."""
    trained = []
    for x in run.training.batches(data, **given):
        if run.step(x) is not kf.Training.SKIPPED:
            trained.append(np.asarray(x)[:, 0].astype(int).tolist())
    return trained


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((points(4), points(5)), r"lengths \[4, 5\]"),
        ((), "0 arrays"),
        (np.float32(1), "was given 1 single value and no array"),
        (np.zeros((0, 2)), "0 samples"),
    ],
)
def test_data_that_does_not_fit_is_refused(data, message):
    with pytest.raises(UsageError, match=message):
        linear_run().training.batches(data, batch_size=1, epochs=1, seed=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.0}, r"batch_size=2\.0"),
        ({"batch_size": 9}, "only 8 samples"),
        ({"epochs": -1}, "epochs=-1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        linear_run().training.batches(points(8), **{"batch_size": 4, "epochs": 1, "seed": 0, **given})


def test_a_second_loop_is_refused():
    run = linear_run()
    run.training.batches(points(8), batch_size=4, epochs=1, seed=0)
    with pytest.raises(UsageError, match="called twice"):
        run.training.batches(points(8), batch_size=4, epochs=1, seed=0)


def test_a_batch_that_is_not_given_to_the_step_is_refused():
    run = linear_run()
    loop = run.training.batches(points(8), batch_size=4, epochs=1, seed=0)
    next(loop)
    with pytest.raises(UsageError, match="was not given to the function"):
        next(loop)


def test_the_position_advances_by_the_samples_of_a_step():
    run = linear_run()
    positions = []
    for x in run.training.batches(points(5), batch_size=2, epochs=2, seed=0):
        if run.step(x) is not kf.Training.SKIPPED:
            position = run.training._run.graph_state.progress.position()
            positions.append((position.epoch, position.offset))
    assert positions == [(0, 2), (0, 4), (1, 0), (1, 2), (1, 4), (2, 0)]


def test_every_sample_is_counted_exactly_once_an_epoch_inside_the_step():
    model, optimizer = linear_model(), keras.optimizers.SGD(0.1)
    training = kf.attach(model, optimizer)
    seen = tf.Variable(tf.zeros([11], tf.int64))

    @training.step
    def step(x, index):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.scatter_add(tf.IndexedSlices(tf.ones_like(index), index))

    for x, index in training.batches((points(11), np.arange(11)), batch_size=4, epochs=3, seed=0):
        step(x, index)
    assert seen.numpy().tolist() == [3] * 11
    assert training.traces() == 1


def test_a_batch_that_was_mapped_on_the_way_is_known_by_its_turn():
    run = linear_run()
    count = 0
    for x in run.training.batches(points(8), batch_size=4, epochs=1, seed=0):
        count += run.step(tf.identity(x) * 2) is not kf.Training.SKIPPED
    assert count == 2


def test_no_epochs_are_no_batches():
    assert list(linear_run().training.batches(points(4), batch_size=2, epochs=0, seed=0)) == []


def test_a_remainder_that_is_dropped_is_never_trained_on_though_the_batch_changes():
    @kf.policy
    def larger(training):
        return kf.control.every(3).set_global_batch_size(6)

    run = linear_run(policies=[larger()])
    trained = walked(run, points(17), batch_size=4, epochs=3, seed=0, remainder="drop")
    # The rule of step 3 is carried out after step 4, with one sample left anyway; two steps of 6 make an epoch then.
    assert [len(batch) for batch in trained] == [4, 4, 4, 4, 6, 6, 6, 6]
    assert all(len({one for batch in epoch for one in batch}) == 12 for epoch in (trained[4:6], trained[6:]))


@pytest.mark.parametrize(("remainder", "told"), [("drop", (48, 40)), ("keep", (51, 51))])
def test_the_samples_of_the_job_are_those_that_it_comes_to_though_the_batch_changes(remainder, told):
    seen = {}

    def look(control, step, samples, done):
        seen[step] = samples, done

    @kf.policy
    def larger(training):
        watched = training.step, training.job_samples, training.samples_done
        return kf.control.every(3).until(training.step > 3).set_global_batch_size(6), kf.control.always().call(
            look, *watched
        )

    run = linear_run(policies=[larger()])
    trained = [len(one) for one in walked(run, points(17), batch_size=4, epochs=3, seed=0, remainder=remainder)]
    run.training.finish()
    assert trained[:4] == [4] * 4
    assert {step: samples for step, (samples, _) in seen.items()} == {step: told[step > 4] for step in seen}
    assert min(seen) <= 4 < max(seen)
    for step, (samples, done) in seen.items():
        assert done == sum(trained[: step - 1])
        assert step <= 4 or samples == sum(trained)


def test_an_epoch_ends_at_the_barrier_that_makes_its_rest_a_remainder():
    @kf.policy
    def larger(training):
        return kf.control.every(1).set_global_batch_size(6)

    run = linear_run(policies=[larger()])
    trained = walked(run, points(12), batch_size=4, epochs=2, seed=0, remainder="drop")
    assert [len(batch) for batch in trained] == [4, 4, 6, 6]
    assert run.training._run.graph_state.progress.position().epoch == 2


def test_records_are_loaded_in_a_thread_that_ends_with_the_loop():
    names = set()

    def load(row):
        names.add(threading.current_thread().name)
        return row

    run = linear_run()
    trained = walked(run, list(points(9)), batch_size=4, epochs=2, seed=1, load=load)
    assert [len(batch) for batch in trained] == [4, 4, 1] * 2
    assert sorted(one for batch in trained for one in batch) == sorted([*range(9)] * 2)
    assert names == {"kungfu-loader"}
    assert "kungfu-loader" not in {thread.name for thread in threading.enumerate()}


def test_a_dataset_that_a_function_makes_of_indices_is_trained_on():
    data = points(9)

    def make(indices):
        return tf.data.Dataset.from_tensor_slices(indices).map(lambda index: tf.gather(data, index))

    run = linear_run()
    trained = walked(run, make, samples=9, batch_size=4, epochs=1, seed=1)
    assert trained == walked(linear_run(), data, batch_size=4, epochs=1, seed=1)
