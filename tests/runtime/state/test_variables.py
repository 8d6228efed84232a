"""Variables in memory: read where they are, overwritten without touching who shared their buffer."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
import tensorflow as tf

from kungfu.runtime.state.variables import memory_of, writable_memory_of

DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int8, tf.int64, tf.bool, tf.complex64]


def test_variables_of_every_kind_are_read_where_they_are():
    variables = [tf.Variable(tf.cast([[0, 1], [1, 0]], dtype)) for dtype in DTYPES]
    memory = memory_of([*variables, tf.Variable(7, dtype=tf.int32), tf.Variable(tf.zeros([0, 3]))])
    expected = b"".join(variable.numpy().tobytes() for variable in variables) + (7).to_bytes(4, "little")
    assert memory.read(0, memory.total_bytes) == expected
    again = memory_of(variables)
    assert again.table.tolist() == memory.table[: len(variables)].tolist(), "no copies"


def test_what_is_written_is_in_the_variable_and_nowhere_else():
    variable = tf.Variable([1.0, 2.0, 3.0])
    shared, taken = variable.read_value(), np.float32([7.0, 8.0, 9.0])
    with writable_memory_of([variable]) as memory:
        memory.write(0, taken.tobytes())
    assert variable.numpy().tolist() == taken.tolist()
    assert shared.numpy().tolist() == [1.0, 2.0, 3.0]
    variable.assign_add([1.0, 1.0, 1.0])
    assert variable.numpy().tolist() == [8.0, 9.0, 10.0]


def test_a_variable_that_nobody_shares_keeps_its_place_in_memory():
    variable = tf.Variable(tf.zeros([1000]))
    with writable_memory_of([variable]) as memory:
        place = memory.table.tolist()
    assert memory_of([variable]).table.tolist() == place


def test_no_variables_have_no_memory():
    assert memory_of([]).total_bytes == 0
    with writable_memory_of([]) as memory:
        assert memory.total_bytes == 0


class Accelerated:
    """A variable that lies in the memory of a GPU, as far as one can tell from here."""

    device = "/job:localhost/replica:0/task:0/device:GPU:0"

    def __init__(self, variable):
        self.numpy, self.assign = variable.numpy, variable.assign
        self.shape, self.dtype = variable.shape, variable.dtype


def test_variables_of_another_device_are_read_and_overwritten_by_way_of_the_host():
    variables = [tf.Variable(tf.cast([[0, 1], [1, 0]], dtype)) for dtype in DTYPES] + [tf.Variable(7)]
    elsewhere = [Accelerated(variable) for variable in variables]
    content = memory_of(elsewhere).read(0, memory_of(variables).total_bytes)
    assert content == memory_of(variables).read(0, len(content))
    for variable in variables:
        variable.assign(tf.zeros_like(variable))
    with writable_memory_of(elsewhere) as memory:
        memory.write(0, content)
    assert memory_of(variables).read(0, len(content)) == content


def test_what_is_not_written_of_another_device_stays():
    variable = tf.Variable([1.0, 2.0, 3.0])
    with writable_memory_of([Accelerated(variable)]) as memory:
        memory.write(4, np.float32([7.0]).tobytes())
    assert variable.numpy().tolist() == [1.0, 7.0, 3.0]


@pytest.mark.slow
def test_reading_and_overwriting_a_large_state_takes_no_memory_beside_it():
    variables = [tf.Variable(tf.fill([5_000_000], float(number))) for number in range(10)]
    with writable_memory_of(variables):
        before = psutil.Process().memory_info().rss
    with writable_memory_of(variables) as memory:
        content = memory_of(variables)
        for start in range(0, content.total_bytes, 1 << 20):
            memory.write(start, content.read(start, min(start + (1 << 20), content.total_bytes)))
    assert psutil.Process().memory_info().rss - before < 20e6
