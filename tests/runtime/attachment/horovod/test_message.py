"""The all-reduce in the graph while there are no other peers: the identity, prescaled."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.attachment.horovod.message import EngineState, all_reduce

pytest.importorskip(
    "horovod.tensorflow", reason="horovod is not installed; `python -m kungfu.native.horovod` builds it"
)

Way = Callable[[Callable[..., Any]], Callable[..., Any]]
EAGER_AND_TRACED = pytest.mark.parametrize("way", [lambda f: f, tf.function], ids=["eager", "traced"])


@EAGER_AND_TRACED
def test_floating_tensors_but_the_last_are_multiplied_and_all_else_stays(way: Way) -> None:
    values = [
        tf.constant([2, 4], dtype) for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
    ]
    sums = way(lambda: alone([*values, tf.constant([8.0])], prescale=0.25))()
    assert [t.numpy().tolist() for t in sums] == [[0.5, 1.0]] * 4 + [[2, 4]] * 2 + [[8.0]]
    assert [t.dtype for t in sums] == [*(t.dtype for t in values), tf.float32]


@EAGER_AND_TRACED
def test_a_prescale_of_0_makes_zeros_even_of_nan_and_infinity(way: Way) -> None:
    wild = tf.constant([np.nan, np.inf, -np.inf, 1.0])
    scaled, last = way(lambda: alone([wild, wild], prescale=0.0))()
    assert scaled.numpy().tolist() == [0.0] * 4
    np.testing.assert_array_equal(last, wild)


@pytest.mark.parametrize(("kind", "wide"), [(np.float16, np.float32), (np.float64, np.float64)])
def test_a_float16_is_rounded_once_and_a_float64_is_multiplied_by_a_float64(kind: Any, wide: Any) -> None:
    value, scale = kind(0.3), wide(1 / 3)
    scaled, _ = alone([tf.constant(value), tf.constant(0.0)], prescale=scale)
    assert scaled.numpy() == kind(wide(value) * scale)


@EAGER_AND_TRACED
def test_scalars_and_empty_tensors_keep_their_shapes(way: Way) -> None:
    scalar, empty, last = way(lambda: alone([tf.constant(3.0), tf.zeros([0, 5]), tf.zeros([0])], prescale=1.0))()
    assert (scalar.shape, empty.shape, last.shape) == ((), (0, 5), (0,))


def test_a_shape_that_is_not_known_when_traced_stays_as_it_comes() -> None:
    traced = tf.function(lambda x: alone([x, x], prescale=2.0), input_signature=[tf.TensorSpec([None, 2])])
    for rows in (1, 3, 0):
        assert [t.shape for t in traced(tf.ones([rows, 2]))] == [(rows, 2)] * 2


def test_the_order_advances_before_and_after_a_message_and_the_pulse_ends_even() -> None:
    order, state = tf.Variable(7, dtype=tf.int64), EngineState()
    tf.function(lambda: all_reduce([tf.constant(1.0)], prescale=1.0, order=order, state=state, tag="tag"))()
    assert order.numpy() == 9
    assert state.message_count.numpy() % 2 == 0


@pytest.mark.parametrize(
    ("values", "told"),
    [([], "at least one tensor"), (["text", True], "tensors of bool, string; allowed are float16, ")],
)
def test_no_tensors_and_a_dtype_that_cannot_be_added_are_refused(values: list[Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        alone([tf.constant(one) for one in values], prescale=1.0)


def alone(values: list[Any], *, prescale: Any) -> list[Any]:
    return all_reduce(values, prescale=prescale, order=ORDER, state=UNPLUGGED, tag="alone")


ORDER, UNPLUGGED = tf.Variable(0, dtype=tf.int64), EngineState()
