"""The mean of gradients over samples, and what rides on its message."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.training.graph.average import average
from kungfu.training.graph.totals import SentTotals
from tests.training.linear import linear_model, numbers_of, points
from tests.training.peers import averaging_of, on_peers


def averaged(given, *, loss=lambda x: tf.reduce_sum(x) * 0.0):
    """What ``average`` makes of constants in the first step that counts, as NumPy."""
    training = kf.attach(linear_model(), keras.optimizers.SGD(1.0))
    step = training.step(lambda x: training.average(given(), loss=loss(x)))
    return tf.nest.map_structure(np.asarray, step(points(2)))


def test_the_structure_of_the_gradients_is_kept_with_its_none():
    got = averaged(lambda: {"b": [tf.constant([1.0]), None], "a": (tf.constant(2.0), None)})
    assert got["b"][0].tolist() == [1.0]
    assert got["a"][0] == 2.0
    assert got["b"][1].item() is None
    assert got["a"][1].item() is None


def test_a_small_sparse_gradient_is_made_dense_and_its_repeated_rows_are_added():
    sparse = lambda: [tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([2, 0, 2]), tf.constant([3, 1]))]  # noqa: E731
    assert averaged(sparse)[0].tolist() == [[2.0], [0.0], [5.0]]


@pytest.mark.parametrize(
    ("width", "shape", "words"), [(1 << 10, [1 << 17, 1 << 10], r"512 MiB.*at most 256 MiB"), (2, None, "unknown size")]
)
def test_a_sparse_gradient_that_may_fill_the_memory_is_refused_with_its_size(width, shape, words):
    shape = None if shape is None else tf.constant(shape)
    with pytest.raises(UsageError, match=words):
        averaged(lambda: [tf.IndexedSlices(tf.ones([1, width]), tf.constant([0]), shape)])


def test_gradients_that_are_all_none_are_refused():
    with pytest.raises(UsageError, match="2 gradients and all of them are None"):
        averaged(lambda: [None, None])


def test_a_loss_that_is_no_scalar_is_refused():
    with pytest.raises(UsageError, match="scalar"):
        averaged(lambda: [tf.constant(1.0)], loss=lambda x: tf.reduce_sum(x, axis=1))


def test_a_large_loss_scale_is_kept_for_the_optimizer_and_taken_out_for_the_monitors():
    seen = []

    @kf.policy
    def looking(training):
        norm = kf.ops.norm_squared(training.mean_grads)
        return kf.control.always().call(lambda control, value: seen.append(value), norm)

    inner = keras.optimizers.SGD(1.0)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)
    model = linear_model()
    training = kf.attach(model, optimizer, policies=[looking()])

    @training.step
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
            scaled = optimizer.scale_loss(loss)
        gradients = training.average(tape.gradient(scaled, model.trainable_variables), loss=loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return gradients[0]

    x = np.array([[3.0, 4.0]], np.float32)
    gradients = np.asarray(step(x)).ravel()
    step(x)
    assert gradients.tolist() == [3 * 1024.0, 4 * 1024.0]
    assert np.asarray(model.weights[0]).ravel().tolist() == [-6.0, -8.0]
    assert seen == [25.0]


@pytest.mark.parametrize(
    ("samples", "batch"),
    [((1.0, 1.0, 1.0), 3), ((1.0, 1.0, 1.0), 5), ((3.0, 1.0, 2.0), 6)],
    ids=["as many as expected", "fewer than expected", "uneven shares"],
)
def test_float64_gradients_of_thirds_have_the_mean_of_float64(samples, batch):
    given = [0.1, 0.7, -0.2]

    def mean(rank, attachment):
        averaging = averaging_of([], rank, attachment, size=3, samples=samples[rank], batch=batch)
        return float(average(averaging, [tf.constant(given[rank], tf.float64)], loss=0.0)[0])

    means = on_peers(3, mean)
    assert len(set(means)) == 1
    assert means[0] == pytest.approx(np.average(given, weights=samples), rel=1e-14, abs=0)


def test_a_peer_without_samples_adds_nothing_to_means_whatever_it_ran_on():
    given = [(2.0, [1.5], [3], 4.0), (0.0, [np.nan], [7], np.inf)]  # samples, gradients, whole numbers, loss

    def mean(rank, attachment):
        samples, floats, whole, loss = given[rank]
        averaging = averaging_of([], rank, attachment, size=2, samples=samples, batch=5)
        means = average(averaging, [tf.constant(floats), tf.constant(whole)], loss=loss)
        numbers = numbers_of(averaging.graph_state)
        known = [numbers[one] for one in (("local", "samples"), ("local", "loss"), ("agreed", "mean_loss"))]
        return [one.numpy().tolist() for one in means], known

    (means, known), (others, known_without) = on_peers(2, mean)
    assert means[0] == others[0] == [1.5]
    assert means[1] == others[1]
    assert known == [2.0, 4.0, 4.0]
    assert known_without == pytest.approx([0.0, np.nan, 4.0], nan_ok=True)


# ---- totals, which are added up beside the gradients -----------------------------------------------------------------

KINDS = [
    [("float32", (2, 2)), ("float32", ())],
    [("float64", (3,)), ("int64", ())],
    [("float64", (2,)), ("float32", (0,)), ("float32", (3,)), ("int64", (1,))],
    [],
]


def exchanged(rank: int, attachment: LocalAttachment, values: list[Any], samples: int) -> tuple[list[Any], Any]:
    """The sums of totals that travel behind other numbers, and those numbers."""
    order = tf.Variable(0, dtype=tf.int64)
    totals = SentTotals.sent(attachment, values, order=order, samples=tf.constant(samples))
    before = tf.constant([1.0, 10.0 * rank])
    _, extras = attachment.all_reduce(
        [tf.zeros([1]), tf.concat([before, totals.floats], axis=0)], prescale=0.5, order=order, tag="gradients"
    )
    extras, sums = totals.received(extras)
    return [one.numpy() for one in sums], extras.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("empty", [None, 1])
def test_totals_of_every_type_are_added_and_a_peer_without_samples_adds_nothing(kinds, empty):
    draw = np.random.default_rng(0)
    values = [[np.asarray(draw.integers(0, 9, shape), kind) for kind, shape in kinds] for _ in range(3)]

    def run(rank: int, attachment: LocalAttachment) -> Any:
        return exchanged(rank, attachment, values[rank], 0 if rank == empty else 4)

    found = on_peers(3, run)
    counted = [one for rank, one in enumerate(values) if rank != empty]
    for sums, extras in found:
        np.testing.assert_array_equal(extras, [3.0, 30.0])
        assert [one.dtype.name for one in sums] == [kind for kind, _ in kinds]
        for place, one in enumerate(sums):
            np.testing.assert_array_equal(one, np.sum([row[place] for row in counted], axis=0))
