"""Where samples come from: arrays, records, functions of an index."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.data.sample_source import as_source, rows
from tests.keras.fitting import Batches

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


def walked() -> Iterator[np.ndarray]:
    yield from ROWS


RAGGED = [[1.0], [2.0, 3.0]]
UNSUITABLE: dict[str, tuple[Any, str]] = {
    "dataset": (tf.data.Dataset.from_tensor_slices(ROWS).batch(2), "a tf.data.Dataset, which can only be walked from"),
    "dataset in a nest": ((tf.data.Dataset.range(3), ROWS), "a tf.data.Dataset, which can only be walked from"),
    "generator": (walked(), "was given generator, which can only be walked once"),
    "zip": (zip(ROWS, ROWS, strict=True), "was given zip, which can only be walked once"),
    "batches of keras": (Batches(ROWS, ROWS, 2), "was given Batches, a keras PyDataset: its items are whole batches"),
    "ragged tensor": (tf.ragged.constant(RAGGED), r"a ragged tensor.* pad it with ragged.to_tensor\(\)"),
    "ragged tensor in a nest": ({"x": tf.ragged.constant(RAGGED), "y": np.zeros(2)}, "a ragged tensor"),
    "ragged lists": (RAGGED, "was given 3 single values and no array"),
    "rows of different lengths": (np.array([np.zeros(1), np.zeros(2)], object), r"Python objects \(ndarray\)"),
    "sparse tensor": (tf.sparse.from_dense(ROWS), "make it dense with tf.sparse.to_dense"),
    "set": ({1, 2, 3}, "was given set, which can be walked and has no items by number"),
    "text": ("data/train.csv", "was given the text 'data/train.csv': it reads no files"),
    "no arrays": ((), "0 arrays"),
    "one value": (np.float32(1), "was given 1 single value and no array"),
    "many arrays": ([np.zeros(n) for n in range(1, 60)], r"59 arrays of lengths \[1, 2, 3, 4, 5, \.\.\.\]"),
}


@pytest.mark.parametrize("kind", UNSUITABLE)
def test_data_that_has_no_samples_by_index_is_refused_by_what_it_is_with_the_way_out(kind: str) -> None:
    data, message = UNSUITABLE[kind]
    with pytest.raises(UsageError, match=message) as refused:
        as_source(data, load=None, samples=None)
    assert len(str(refused.value)) < 500, "no tensor is dumped"


def test_texts_in_an_array_of_objects_are_samples() -> None:
    source = as_source(np.array(["a", "bc"], object), load=None, samples=None)
    assert source.take(np.array([1])).numpy().tolist() == [b"bc"]


PLACES = np.array([7, 2, 2, 5])
BASE = np.arange(10 * 5000).reshape(10, 5000)

ARRAYS = {kind: BASE.astype(kind) for kind in ("float32", "float64", "float16", "uint8", "int64", "complex64")} | {
    "bool": BASE % 3 == 0,
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
