"""Arrays under ``fit``: what the peers of a job compare of them, as they share samples by index."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from kungfu.keras.data.choose import fit_data
from kungfu.keras.data.fit_data import FitData
from kungfu.keras.fits import FitCall
from tests.keras.fitting import arguments, network, points

X, Y = points()
CLASSES = np.digitize(Y, [-0.5, 0.5])
ORDER = np.random.default_rng(1).permutation(len(X))


def data(x: Any, y: Any = None, **given: Any) -> FitData:
    return fit_data(arguments(x=x, y=y, **given), seed=0)


def told(**given: Any) -> list[str]:
    """The call of ``fit`` in words, as peers compare it."""
    parts = arguments(x=X, verbose=0, **given)
    return FitCall(network(), parts, fit_data(parts, seed=0), cast(Any, SimpleNamespace(phase=1))).described


@pytest.mark.parametrize(
    "y",
    [Y, CLASSES, CLASSES.astype(str), {"value": Y, "kind": CLASSES[:, 0]}],
    ids=["values", "classes", "texts", "several outputs"],
)
def test_samples_in_another_order_on_a_peer_are_told_by_their_targets(y):
    other = {name: one[ORDER] for name, one in y.items()} if isinstance(y, dict) else y[ORDER]
    assert data(X, y).described == data(X, y).described
    assert data(X[ORDER], other).described["targets"] != data(X, y).described["targets"]
    assert data(X[ORDER], other).described["seed"] == data(X, y).described["seed"]


def test_another_split_of_the_samples_is_told_and_other_weights_apart_from_it():
    assert data(X[10:], Y[10:]).described != data(X[:-10], Y[:-10]).described
    weights = np.arange(50.0)
    one, other = (data(X, Y, sample_weight=given).described for given in (weights, weights[::-1]))
    assert [name for name in one if one[name] != other[name]] == ["weights"]


def test_other_weights_of_classes_are_told_as_such_and_not_as_other_samples():
    weights = {0: 1.0, 1: 3.0, 2: 1.0}
    one, other = (data(X, CLASSES, class_weight=given) for given in (weights, {0: 3.0, 1: 1.0}))
    assert one.described == other.described == data(X, CLASSES).described
    assert told(y=CLASSES, class_weight=weights)[-1] == "class_weight={0: 1, 1: 3, 2: 1}"
    assert told(y=CLASSES, class_weight={2: 1, 1: np.int64(3), 0: np.float32(1)})[-1].endswith("{0: 1, 1: 3, 2: 1}")
    assert not any("class_weight" in one for one in told(y=CLASSES))
    rows = tf.data.Dataset.from_tensor_slices((X, CLASSES)).batch(25)
    batches = [data(rows, class_weight=given).described for given in (weights, {0: 3.0, 1: 1.0}, None)]
    assert batches[0] == batches[1] == batches[2]


def test_targets_that_are_all_alike_are_compared_together_with_the_inputs():
    zeros, few = np.zeros((50, 1)), np.arange(50)[:, None] == 7
    for y in (zeros, few):
        assert data(X[ORDER], y).described["targets"] != data(X, y).described["targets"]
        assert data(X * (1.0 + 1e-15), y).described == data(X, y).described


def test_inputs_may_be_changed_at_random_by_each_peer_unless_there_is_nothing_else():
    noisy = X + np.random.default_rng(2).normal(size=X.shape)
    assert data(noisy, Y).described == data(X, Y).described
    assert data(noisy).described != data(X).described


def test_texts_may_be_of_any_language():
    texts = np.array(["Äpfel", "Birnen", "Jabłka"], object)
    assert data(texts).described == data(texts.copy()).described != data(texts[::-1]).described


def test_the_last_digits_of_targets_may_be_those_of_another_processor():
    assert data(X, Y * (1.0 + 1e-15)).described == data(X, Y).described
    assert data(X, Y.astype("float32")).described == data(X, Y).described


def test_of_large_targets_some_numbers_are_looked_at():
    large = np.lib.stride_tricks.as_strided(np.zeros(1), shape=(4, 1 << 24), strides=(0, 0))
    many = np.arange(1 << 20)
    assert data(np.zeros((4, 1)), large).described["targets"] >= 0
    assert data(many, many).described != data(many[::-1], many[::-1]).described
