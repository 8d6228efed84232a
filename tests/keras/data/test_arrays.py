"""Arrays under ``fit``: what the peers of a job compare of them, as they share samples by index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kungfu.keras.data import FitData, fit_data
from tests.keras.fitting import arguments, points

X, Y = points()
CLASSES = np.digitize(Y, [-0.5, 0.5])
ORDER = np.random.default_rng(1).permutation(len(X))


def data(x: Any, y: Any = None, **given: Any) -> FitData:
    return fit_data(arguments(x=x, y=y, **given), seed=0)


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


def test_another_split_of_the_samples_is_told_and_so_are_other_weights():
    assert data(X[10:], Y[10:]).described != data(X[:-10], Y[:-10]).described
    weights = np.arange(50.0)
    assert data(X, Y, sample_weight=weights).described != data(X, Y, sample_weight=weights[::-1]).described


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
