"""Losses of the whole batch, put together from slices: of every denominator, also where slices have nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kungfu.keras.train_step import WholeBatchLosses
from kungfu.training.graph.combined_metrics import PeerShare
from tests.keras.fitting import assert_as_keras, compiled, float64, network

SAMPLES, WORDS = 7, 4
SLICES = [[3, 4], [7, 0], [1, 1, 5], [0, 0, 7]]


class OnePeer:
    """One of several peers: it is given the sums, once it has said what it adds to them."""

    def __init__(self, samples: int) -> None:
        peer = PeerShare(tf.constant(float(samples)), rank=0, size=1)
        self.losses = WholeBatchLosses(lambda: peer, self.sums_of)
        self.added: list[Any] = []
        self.sums: list[Any] | None = None

    def sums_of(self, values: Sequence[Any], *, tag: str) -> list[Any]:
        (value,) = values
        self.added.append(value)
        return [value if self.sums is None else self.sums[len(self.added) - 1]]


def given(loss: Any) -> Any:
    """A loss as ``compile`` is given it: a function of targets, predictions and weights."""
    model = compiled(network(), loss)
    return lambda y, predicted, weights=None: model.compute_loss(y=y, y_pred=predicted, sample_weight=weights)


@dataclass(frozen=True)
class Case:
    """A loss, a batch for it, and what it comes to on the whole of it."""

    loss: Any
    y: Any
    predicted: Any
    weights: Any
    mask: Any
    expected: float


@cache
def case(reduction: str, weighted: str | None, masked: str | None) -> Case:
    """The mean squared error, reduced so, of a batch with such weights and such a mask; in float64."""
    draw = np.random.default_rng(0)
    y, predicted = draw.normal(size=(2, SAMPLES, WORDS, 2))
    weights = {
        None: None,
        "samples": draw.uniform(size=(SAMPLES, 1)),
        "positions": draw.uniform(size=(SAMPLES, WORDS)),
        "zeros": np.zeros((SAMPLES, 1)),
    }[weighted]
    mask = {
        None: None,
        "some": draw.uniform(size=(SAMPLES, WORDS)) > 0.4,
        "all": np.zeros((SAMPLES, WORDS), bool),
        "none of a slice": np.repeat(np.arange(SAMPLES)[:, None] > 2, WORDS, axis=1),
    }[masked]
    everything = tf.constant(predicted)
    if mask is not None:
        everything._keras_mask = tf.constant(mask)
    loss = given(keras.losses.MeanSquaredError(reduction))
    return Case(loss, y, predicted, weights, mask, float(loss(tf.constant(y), everything, weights)))


def whole(loss: Any, slices: Sequence[int], y: Any, predicted: Any, weights: Any, mask: Any) -> Any:
    """The mean of the slices' losses, weighted by samples; an empty slice stands for another peer's sample."""
    loops = [OnePeer(count) for count in slices]
    starts = np.cumsum([0, *slices])

    def of(loop: OnePeer, first: int, count: int) -> Any:
        rows = slice(first, first + count) if count else slice(0, 1)
        part = tf.constant(predicted[rows])
        if mask is not None:
            part._keras_mask = tf.constant(mask[rows])
        loop.added = []
        with loop.losses.scaled():
            return loss(tf.constant(y[rows]), part, None if weights is None else tf.constant(weights[rows]))

    told = list(zip(loops, starts[:-1].tolist(), slices, strict=True))
    losses = [of(*one) for one in told]
    sums = [sum(values) for values in zip(*(loop.added for loop in loops), strict=True)]
    if sums:  # else they are what they are without the others
        for loop in loops:
            loop.sums = sums
        losses = [of(*one) for one in told]
    return sum(float(loss) * count for loss, count in zip(losses, slices, strict=True)) / sum(slices)


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("masked", [None, "some", "all", "none of a slice"])
@pytest.mark.parametrize("weighted", [None, "samples", "positions", "zeros"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean", "mean_with_sample_weight", "sum"])
def test_the_mean_of_the_slices_is_the_loss_of_the_whole_batch(reduction, weighted, masked, slices):
    with float64():
        one = case(reduction, weighted, masked)
        found = whole(one.loss, slices, one.y, one.predicted, one.weights, one.mask)
    np.testing.assert_allclose(found, one.expected, rtol=1e-12, atol=1e-15)


def test_a_mean_over_samples_and_a_loss_not_given_to_compile_send_nothing():
    loop, kind = OnePeer(3), keras.losses.MeanSquaredError
    mean, weighted, added = (given(kind(one)) for one in ("mean", "mean_with_sample_weight", "sum"))
    y, predicted = tf.ones((3, 2)), tf.zeros((3, 2))
    with loop.losses.scaled():
        mean(y, predicted, tf.ones(3))
        weighted(y, predicted)
        kind("sum")(y, predicted)
        assert loop.added == []
        added(y, predicted)
        added(y, predicted)
        assert len(loop.added) == 1, "the samples of all peers are known now"


def test_a_loss_that_ignores_a_class_is_divided_by_the_others():
    draw = np.random.default_rng(1)
    y, predicted = draw.integers(0, 3, SAMPLES), draw.normal(size=(SAMPLES, 3))
    with float64():
        loss = given(keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1))
        expected = float(loss(tf.constant(y), tf.constant(predicted)))
        np.testing.assert_allclose(whole(loss, [2, 5], y, predicted, None, None), expected, rtol=1e-12)


def masked_network() -> Any:
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input((WORDS,), dtype="int32"), keras.layers.Embedding(5, 2, mask_zero=True), keras.layers.Dense(1)]
    )


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_job_of_one_trains_on_masked_outputs_as_keras_does(jit_compile, capsys):
    draw = np.random.default_rng(2)
    x, y = draw.integers(0, 5, (20, WORDS)), draw.normal(size=(20, WORDS, 1))

    def given() -> dict[str, Any]:
        # By Keras' Adam the rows of an embedding's sparse gradient are squared one by one; in a job it is dense.
        return {"metrics": ["mae"], "jit_compile": jit_compile, "optimizer": keras.optimizers.SGD(0.1)}

    assert_as_keras(masked_network, x, y, batch_size=8, epochs=2, compile_with=given)
    assert ("run without XLA" in capsys.readouterr().err) == jit_compile
