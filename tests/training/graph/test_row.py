"""Numbers in a row: of tensors and of variables, by the native op and without it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from kungfu.training.graph import row
from kungfu.training.graph.row import row_of


@pytest.fixture(params=["native", "op by op"])
def way(request, monkeypatch):
    if request.param == "op by op":
        monkeypatch.setattr(row, "is_available", lambda: False)
    return request.param


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_every_number_stands_in_its_place_and_keeps_its_value(way, graph):
    count, speed, flags = (
        tf.Variable(2**40 + 1, dtype=tf.int64),
        tf.Variable(np.float32(0.1)),
        tf.Variable([True, False]),
    )

    def made():
        return row_of([tf.constant(-3), count, tf.constant([np.nan, -np.inf]), flags, tf.zeros([0]), speed, True])

    found = (tf.function(made) if graph else made)().numpy()
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [-3, 2**40 + 1, np.nan, -np.inf, 1, 0, np.float64(np.float32(0.1)), 1])


def test_a_variable_gives_what_it_holds_at_this_point_of_the_graph(way):
    number = tf.Variable(1.0)

    @tf.function
    def three():
        before = row_of([number])
        number.assign(2.0)
        behind = row_of([number])
        number.assign_add(3.0)
        return before, behind, row_of([number, number])

    assert [one.numpy().tolist() for one in three()] == [[1.0], [2.0], [5.0, 5.0]]
    assert three.get_concrete_function().variables[0] is number


def test_a_variable_that_was_sized_anew_gives_all_its_entries(way):
    flags = tf.Variable(tf.zeros([0], tf.bool), shape=[None])
    gather = tf.function(lambda: row_of([flags, tf.constant(7, tf.int64)]))
    assert gather().numpy().tolist() == [7]
    flags.assign([True, True, False])
    assert gather().numpy().tolist() == [1, 1, 0, 7]


def test_what_is_no_number_is_refused():
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError, ValueError)):
        row_of([tf.Variable("three")])
