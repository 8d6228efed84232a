"""Validation data: what the peers of a job compare of them, as each validates on a part."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.keras.data.fit_data import fit_data
from tests.keras.fitting import Batches, arguments, plan_of, points

X, Y = points()
ORDER = np.random.default_rng(1).permutation(len(X))
SIZE = 20


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
    assert compared(iter_of_nothing()) == -1


def iter_of_nothing() -> Iterator[Any]:
    yield from ()


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
