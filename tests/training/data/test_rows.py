"""Rows of arrays as tensors: of every kind the same numbers, in memory that nobody else writes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.training.data.rows import rows

PLACES = np.array([7, 2, 2, 5])
BASE = np.arange(10 * 5000).reshape(10, 5000)

ARRAYS = {
    "float32": BASE.astype(np.float32),
    "float64": BASE.astype(np.float64),
    "float16": BASE.astype(np.float16),
    "uint8": BASE.astype(np.uint8),
    "int64": BASE.astype(np.int64),
    "bool": BASE % 3 == 0,
    "complex64": BASE.astype(np.complex64),
    "in the other byte order": BASE.astype(np.dtype(np.float32).newbyteorder()),
    "with gaps": BASE.astype(np.float32)[:, ::2],
    "turned": np.asfortranarray(BASE.astype(np.float32)),
    "read-only": np.frombuffer(BASE.astype(np.float32).tobytes(), np.float32).reshape(10, 5000),
    "small": BASE[:, 0],
    "of words": np.array([f"word {number}" for number in range(10)]),
    "of many dimensions": BASE.reshape(10, 10, 5, 100).astype(np.int32),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_rows_of_every_kind_of_array_are_those_of_numpy(kind: str) -> None:
    array = ARRAYS[kind]
    given, wanted = rows(array, PLACES), tf.convert_to_tensor(array[PLACES])
    assert (given.dtype, given.shape) == (wanted.dtype, wanted.shape)
    assert np.array_equal(given.numpy(), wanted.numpy())


def test_a_tensor_keeps_its_rows_when_the_array_changes_and_is_gone() -> None:
    array: Any = BASE.astype(np.float32)
    wanted = array[PLACES]
    kept = [rows(array, PLACES) for _ in range(20)]
    array[:] = -1
    del array
    gc.collect()
    _ = [np.full((4, 5000), 3.0, np.float32) for _ in range(20)]  # would fall into memory that was freed too soon
    assert all(np.array_equal(one.numpy(), wanted) for one in kept)


def test_a_traced_function_takes_them_and_writes_elsewhere() -> None:
    array = BASE.astype(np.float32)
    given = rows(array, PLACES)
    doubled = tf.function(lambda x: (x * 2, tf.reduce_sum(x)))(given)[0]
    assert np.array_equal(doubled.numpy(), 2 * array[PLACES])
    assert np.array_equal(given.numpy(), array[PLACES])
