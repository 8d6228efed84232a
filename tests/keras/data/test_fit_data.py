"""Arrays and validation data under ``fit``: what the peers of a job compare of them, as they share samples by index."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from kungfu.keras.data.fit_data import fit_data
from kungfu.keras.loop import FitRun
from tests.keras.fitting import Batches, arguments, compiled, network, plan_of, points

X, Y = points()
CLASSES = np.digitize(Y, [-0.5, 0.5])
ORDER = np.random.default_rng(1).permutation(len(X))
SIZE = 20


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


# ---- validation ------------------------------------------------------------------------------------------------------


def compared(validation: Any) -> int:
    return plan_of(X, Y, validation_data=validation).described["validation"]


def dataset(x: Any, y: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(SIZE)


class Shuffled(Batches):
    """In another order after each epoch."""

    def on_epoch_end(self) -> None:
        self.x, self.y = self.x[ORDER], self.y[ORDER]


def generator(x: Any, y: Any) -> Iterator[Any]:
    yield from iter(Batches(x, y, SIZE))


KINDS = {
    "arrays": lambda x, y: (x, y),
    "dataset": dataset,
    "py dataset": partial(Batches, size=SIZE),
    "generator": generator,
}


@pytest.mark.parametrize("kind", KINDS)
def test_validation_data_that_are_others_on_a_peer_are_told(kind):
    """By their targets: each peer may change inputs at random."""
    give = KINDS[kind]
    own = compared(give(X, Y))
    assert own >= 0
    assert compared(give(X.copy(), Y.copy())) == own
    assert compared(give(X[ORDER], Y[ORDER])) != own
    assert compared(give(X, np.random.default_rng(7).normal(size=Y.shape))) != own
    assert compared(give(X + np.random.default_rng(2).normal(size=X.shape), Y)) == own
    assert "validation" not in plan_of(X, Y).described


def test_of_arrays_a_part_that_is_held_out_and_weights_count_too():
    last = np.concatenate([np.arange(35), np.arange(35, 50)[::-1]])
    split = {"validation_split": 0.3, "validation_data": None}
    one, other = (plan_of(x, y, **split).described for x, y in ((X, Y), (X[last], Y[last])))
    assert [name for name in one if one[name] != other[name]] == ["validation"]
    weights = np.arange(50.0)
    assert compared((X, Y, weights)) != compared((X, Y, weights[::-1]))
    assert compared((X, Y)) != compared((X[:-1], Y[:-1]))
    assert compared(X) != compared(X[ORDER])


def test_data_that_come_in_another_order_each_time_are_not_compared():
    """A peer that joins in a later fit has read them less often."""
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    assert compared(rows.shuffle(50, seed=1).batch(SIZE)) == -1
    assert compared(rows.batch(SIZE).shuffle(3)) == -1

    def noisy(x, y):  # a generator of TensorFlow's would begin anew each time where a seed is set
        noise = tf.numpy_function(lambda: np.random.default_rng().uniform(size=1), [], tf.float64)
        return x, y + tf.ensure_shape(noise, [1])

    assert compared(rows.map(noisy).batch(SIZE)) == -1
    assert compared(Shuffled(X, Y, SIZE)) == -1


def test_a_generator_gives_its_first_batch_to_the_validation_too():
    (found, *_) = fit_data(arguments(X, Y, validation_data=generator(X, Y)), seed=0)[2] or ()
    assert [len(x) for x, _ in found] == [SIZE, SIZE, 10]
    assert compared(one for one in ()) == -1


@pytest.mark.parametrize(
    "validation",
    [
        (X, Y[:7]),
        ([1.0, 2.0], [1.0, 2.0]),
        tf.data.Dataset.from_tensors(tf.ragged.constant([[1.0], []])),
        tf.data.Dataset.range(3),
        tf.data.Dataset.from_tensor_slices(X).take(0).batch(SIZE),
    ],
    ids=["uneven", "lists", "ragged", "single numbers", "empty"],
)
def test_what_keras_may_know_is_left_to_it(validation):
    assert compared(validation) == -1
