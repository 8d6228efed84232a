"""Calls of Python inside a step: they stand among its reads and writes of variables where the step has them."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from kungfu.training.graph.variable_io import call_on_host, call_on_host_where, is_variable, read_handles
from tests.training.linear import running


def slow(x: Any) -> Any:
    """The number, later than anything that does not wait for it."""
    square = tf.fill([600, 600], x)
    for _ in range(4):
        square = tf.matmul(square, square) / (600.0 * x)
    return square[0, 0]


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_call_runs_after_what_came_before_it_and_before_what_comes_after(eagerly: bool) -> None:
    weight, count, asked = tf.Variable(0.0), tf.Variable(0), tf.Variable(True)
    seen: list[tuple[float, int]] = []

    def call() -> int:
        seen.append((float(weight), int(count)))
        weight.assign(10.0 * weight)
        count.assign_add(100)
        return 7

    @tf.function
    def step(x: Any) -> list[Any]:
        weight.assign_add(slow(x))
        count.assign_add(1)
        given = tf.cond(
            asked.read_value(),
            lambda: call_on_host(call, [weight.handle, count.handle], tf.int32),
            lambda: tf.constant(0),
        )
        after = [weight.read_value(), count.read_value()]
        weight.assign_add(1.0)
        return [given, *after]

    @tf.function
    def loop() -> None:
        for _ in tf.range(2):
            step(tf.constant(2.0))

    with running(eagerly=eagerly):
        assert [float(one) for one in step(tf.constant(2.0))] == pytest.approx([7, 20.0, 101])
        loop()
    # 2, then ten times that and 1 and 2 more, and so on.
    assert [one for one, _ in seen] == pytest.approx([2.0, 23.0, 233.0])
    assert [count for _, count in seen] == [1, 102, 203]
    assert (float(weight), int(count)) == (pytest.approx(2331.0), 303)


def test_a_call_that_only_reads_is_not_overtaken_by_a_later_write() -> None:
    weight, seen = tf.Variable(1.0), list[float]()

    def call() -> None:
        seen.append(float(weight))

    @tf.function
    def step(x: Any) -> None:
        call_on_host_where(slow(x) > 0.0, call, [weight.handle])
        weight.assign(5.0)

    step(tf.constant(2.0))
    assert (seen, float(weight)) == ([1.0], 5.0)


def test_of_what_a_step_captures_only_variables_are_read() -> None:
    """Reading a lookup table as a variable, to keep the state before a step, would fail: no step with one could run."""
    weight, shift = tf.Variable(2.0), tf.constant([0.5])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [3.0]), 0.0)

    @tf.function
    def step(key: Any) -> Any:
        return weight * table.lookup(key) + shift

    captured = step.get_concrete_function(tf.constant(["a"])).captured_inputs
    assert {id(one) for one in (weight.handle, table.resource_handle, shift)} <= {id(one) for one in captured}
    assert [float(one) for one in read_handles([one for one in captured if is_variable(one)])] == [2.0]
