"""Arrays under ``fit``: what the peers of a job compare of them, as they share samples by index."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from kungfu.keras.data.fit_data import fit_data
from kungfu.keras.loop import FitRun
from tests.keras.fitting import arguments, compiled, network, plan_of, points

X, Y = points()
CLASSES = np.digitize(Y, [-0.5, 0.5])
ORDER = np.random.default_rng(1).permutation(len(X))


def described(x: Any, y: Any = None, **given: Any) -> Any:
    return plan_of(x, y, **given).described


def told(**given: Any) -> list[str]:
    """The call of ``fit`` in words, as peers compare it."""
    parts = arguments(x=X, verbose=0, **given)
    plan, _, validation = fit_data(parts, seed=0)
    return FitRun(compiled(network()), parts, plan, validation, cast(Any, SimpleNamespace(phase=1))).described


@pytest.mark.parametrize(
    "y",
    [Y, CLASSES, CLASSES.astype(str), {"value": Y, "kind": CLASSES[:, 0]}],
    ids=["values", "classes", "texts", "several outputs"],
)
def test_samples_in_another_order_on_a_peer_are_told_by_their_targets(y):
    other = {name: one[ORDER] for name, one in y.items()} if isinstance(y, dict) else y[ORDER]
    assert described(X, y) == described(X, y)
    assert described(X[ORDER], other)["targets"] != described(X, y)["targets"]
    assert described(X[ORDER], other)["seed"] == described(X, y)["seed"]


def test_another_split_of_the_samples_is_told_and_other_weights_apart_from_it():
    assert described(X[10:], Y[10:]) != described(X[:-10], Y[:-10])
    weights = np.arange(50.0)
    one, other = (described(X, Y, sample_weight=given) for given in (weights, weights[::-1]))
    assert [name for name in one if one[name] != other[name]] == ["weights"]


def test_other_weights_of_classes_are_told_as_such_and_not_as_other_samples():
    weights = {0: 1.0, 1: 3.0, 2: 1.0}
    one, other = (described(X, CLASSES, class_weight=given) for given in (weights, {0: 3.0, 1: 1.0}))
    assert one == other == described(X, CLASSES)
    assert told(y=CLASSES, class_weight=weights)[-1] == "class_weight={0: 1, 1: 3, 2: 1}"
    assert told(y=CLASSES, class_weight={2: 1, 1: np.int64(3), 0: np.float32(1)})[-1].endswith("{0: 1, 1: 3, 2: 1}")
    assert not any("class_weight" in one for one in told(y=CLASSES))
    rows = tf.data.Dataset.from_tensor_slices((X, CLASSES)).batch(25)
    batches = [described(rows, class_weight=given) for given in (weights, {0: 3.0, 1: 1.0}, None)]
    assert batches[0] == batches[1] == batches[2]


def test_targets_that_are_all_alike_are_compared_together_with_the_inputs():
    zeros, few = np.zeros((50, 1)), np.arange(50)[:, None] == 7
    for y in (zeros, few):
        assert described(X[ORDER], y)["targets"] != described(X, y)["targets"]
        assert described(X * (1.0 + 1e-15), y) == described(X, y)


def test_inputs_may_be_changed_at_random_by_each_peer_unless_there_is_nothing_else():
    noisy = X + np.random.default_rng(2).normal(size=X.shape)
    assert described(noisy, Y) == described(X, Y)
    assert described(noisy) != described(X)


def test_texts_may_be_of_any_language():
    texts = np.array(["Äpfel", "Birnen", "Jabłka"], object)
    assert described(texts) == described(texts.copy()) != described(texts[::-1])


def test_the_last_digits_of_targets_may_be_those_of_another_processor():
    assert described(X, Y * (1.0 + 1e-15)) == described(X, Y)
    assert described(X, Y.astype("float32")) == described(X, Y)


def test_of_large_targets_some_numbers_are_looked_at():
    large = np.lib.stride_tricks.as_strided(np.zeros(1), shape=(4, 1 << 24), strides=(0, 0))
    many = np.arange(1 << 20)
    assert described(np.zeros((4, 1)), large)["targets"] >= 0
    assert described(many, many) != described(many[::-1], many[::-1])
