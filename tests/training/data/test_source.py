"""Where samples come from: arrays, records, functions of an index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.data.source import as_source

ROWS = np.arange(20, dtype=np.float32).reshape(10, 2)


class Numbered:
    """A sequence as users write them, with a length and items."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if not 0 <= index < 10:
            raise IndexError(index)
        return ROWS[index], index


def dataset(indices: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(indices).map(lambda index: (tf.gather(ROWS, index), index))


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "arrays": ((ROWS, np.arange(10)), {}),
    "tensors": ((tf.constant(ROWS), tf.range(10, dtype=tf.int64)), {}),
    "sequence": (Numbered(), {}),
    "records": (list(range(10)), {"load": lambda index: (ROWS[index], np.int64(index))}),
    "tensors of records": (range(10), {"load": lambda index: (tf.constant(ROWS[index]), tf.constant(index))}),
    "function": (lambda indices: (ROWS[indices], indices), {"samples": 10}),
    "dataset": (dataset, {"samples": 10}),
    "traced dataset": (
        tf.function(dataset, input_signature=[tf.TensorSpec([None], tf.int64)]),
        {"samples": 10},
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_samples_of_the_indices_in_their_order(kind: str) -> None:
    data, given = SOURCES[kind]
    source = as_source(data, **{"load": None, "samples": None, **given})
    assert source.samples == 10
    for indices in ([7, 2, 5], [9]):
        x, index = source.take(np.array(indices))
        assert isinstance(x, tf.Tensor)
        assert x.dtype == tf.float32
        assert x.numpy().tolist() == ROWS[indices].tolist()
        assert index.numpy().tolist() == indices


def test_records_may_be_bytes_that_end_with_zeros() -> None:
    source = as_source([b"a\0", b"bc"], load=lambda record: {"text": record}, samples=None)
    assert source.take(np.array([1, 0]))["text"].numpy().tolist() == [b"bc", b"a\0"]


def test_records_that_become_arrays_of_different_shapes_are_refused_by_both() -> None:
    source = as_source([1, 2], load=lambda record: np.zeros(record), samples=None)
    with pytest.raises(UsageError, match=r"\(1,\), 'float64'\) and \(\(2,\)"):
        source.take(np.array([0, 1]))


@pytest.mark.parametrize(
    ("function", "counts"),
    [
        (lambda indices: ROWS[indices[:-1]], r"\[2\] entries for 3"),
        (lambda indices: (ROWS[indices], np.float32(1)), r"\[3, None\] entries for 3"),
        (lambda indices: dataset(np.arange(5)), r"\[4, 4\] entries for 3"),
        (lambda indices: dataset(indices).batch(3), r"\[1, 1\] entries for 3"),
        (lambda indices: (), r"\[\] entries for 3"),
    ],
)
def test_a_function_that_gives_another_number_of_samples_is_refused(function: Any, counts: str) -> None:
    with pytest.raises(UsageError, match=counts):
        as_source(function, load=None, samples=10).take(np.array([0, 4, 1]))


@pytest.mark.parametrize(
    ("data", "given", "message"),
    [
        (dataset, {}, "samples=None"),
        (dataset, {"samples": 0}, "samples=0"),
        (ROWS, {"samples": 10}, "only for a function of indices"),
        (["a", "b"], {"load": str, "samples": 2}, "only for a function of indices"),
        ({"a": 1}, {"load": str}, "was given dict"),
        (iter([1]), {"load": str}, "was given list_iterator"),
        (["a.png", "b.png"], {}, "load=function"),
    ],
)
def test_data_that_is_no_source_is_refused(data: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        as_source(data, **{"load": None, "samples": None, **given})
