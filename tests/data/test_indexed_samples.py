"""Samples by index: records that several threads load at once, and items that a function maps as tf.data would."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from tests.keras import fitting
from tests.keras.fitting import SAMPLES
from tests.training.linear import linear_run

X, Y = fitting.points()
NUMBERS = np.arange(SAMPLES)


def load(number: int) -> Any:
    return X[number], Y[number]


@pytest.mark.parametrize("readers", [1, 3, 64])
def test_samples_are_in_the_order_of_the_indices_whatever_the_number_of_readers(readers):
    fitting.assert_takes_points(kf.data.records(range(SAMPLES), load, readers=readers))


def test_so_many_are_loaded_at_once():
    together = Barrier(3, timeout=60.0)

    def meeting(number: int) -> Any:
        if number:  # the first one is loaded beforehand, to know how samples look
            together.wait()
        return X[number]

    records = kf.data.records(range(SAMPLES), meeting, readers=3)
    np.testing.assert_array_equal(records.take(np.array([1, 2, 3])), X[1:4])


def test_of_several_records_that_fail_the_first_ones_error_comes_out():
    def failing(number: int) -> Any:
        if number > 3:
            raise OSError(f"no record {number}")
        return X[number]

    records = kf.data.records(range(SAMPLES), failing, readers=4)
    for _ in range(3):
        with pytest.raises(OSError, match="no record 9"):
            records.take(np.array([1, 9, 4, 30, 5]))


def test_the_loop_takes_readers_too_and_has_the_same_samples_in_the_same_order():
    seen = []
    for readers in (1, 4):
        run, one = linear_run(), []
        data = {"load": lambda number: X[number, :2].astype(np.float32), "readers": readers}
        for x in run.training.batches(range(SAMPLES), **data, batch_size=16, epochs=2, seed=3):
            if run.step(x) is not kf.Training.SKIPPED:
                one.append(np.asarray(x))
        seen.append(np.concatenate(one))
    np.testing.assert_array_equal(*seen)


@pytest.mark.slow
def test_fit_trains_on_them_as_on_arrays_in_a_job_and_alone():
    records = kf.data.records(list(range(SAMPLES)), load, readers=4)
    with fitting.float64():
        mine, alone, plain = (fitting.compiled(fitting.network(), metrics=["mae"]) for _ in range(3))
        fitting.plainly(plain, X, Y, batch_size=16, epochs=2, validation_data=(X, Y), validation_batch_size=32)
        fitting.in_job(mine, records, batch_size=16, epochs=2, validation_data=records.dataset(32))
        fitting.assert_same(mine, plain)
        kf.keras.attach(alone)
        alone.run_eagerly = True  # by Keras' own step
        alone.fit(records, batch_size=16, epochs=2, verbose=0, shuffle=False, validation_data=records.dataset(32))
        fitting.assert_same(alone, plain)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"records": 3}, r"kf\.data\.records\(\) was given int: it takes a sequence"),
        ({"records": {"a": 1}}, "was given dict"),
        ({"records": []}, "was given no record"),
        ({"load": None}, r"load=None\): must be a function"),
        ({"readers": 0}, r"kf\.data\.records\(readers=0\): must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    whole = {"records": range(SAMPLES), "load": load, **given}
    with pytest.raises(UsageError, match=message):
        kf.data.records(whole.pop("records"), **whole)


def test_readers_of_a_loop_are_for_records():
    arrays = X[:, :2].astype(np.float32)
    for data, given, message in (
        (arrays, {"readers": 2}, r"readers=2\): only for records"),
        (kf.data.records(range(SAMPLES), load), {"readers": 2}, "kf.data's functions take it themselves"),
        (range(SAMPLES), {"load": load, "readers": "two"}, r"readers='two'\): must be an integer"),
    ):
        with pytest.raises(UsageError, match=message):
            linear_run().training.batches(data, **given, batch_size=4, epochs=1, seed=0)


# ---- items that a function maps --------------------------------------------------------------------------------------


def of_number(number: Any) -> Any:
    return tf.gather(X, number), tf.gather(Y, number)


ITEMS: dict[str, tuple[Any, Any]] = {
    "a number": (SAMPLES, of_number),
    "an array": (NUMBERS, of_number),
    "a tuple": ((X, NUMBERS), lambda x, number: (x, tf.gather(Y, number))),
    "a dictionary": ({"x": X, "y": tf.constant(Y)}, lambda row: (row["x"], row["y"])),
    "a nest": ((X, {"y": Y}), lambda x, row: (x, row["y"])),
}


@pytest.mark.parametrize("kind", ITEMS)
@pytest.mark.parametrize("readers", [1, 8])
def test_samples_are_those_of_tf_data_by_index_whatever_the_number_of_readers(kind, readers):
    items, function = ITEMS[kind]
    samples = kf.data.mapped(items, function, readers=readers)
    fitting.assert_takes_points(samples)
    slices = tf.data.Dataset.range(items) if isinstance(items, int) else tf.data.Dataset.from_tensor_slices(items)
    assert samples.sample_spec == slices.map(function).element_spec


@pytest.mark.parametrize(
    ("items", "function", "message"),
    [
        (tf.data.Dataset.range(3), abs, r"what Dataset\.from_tensor_slices\(\) and \.map\(\) would be given"),
        (3, None, "was given int and NoneType"),
        (0, tf.identity, r"arrays of \[0\] entries"),
        ((X, Y[:3]), lambda x, y: (x, y), r"arrays of \[3, 50\] entries"),
        (NUMBERS, tf.ragged.range, r"kf\.data\.mapped\(function\) gives a RaggedTensorSpec"),
        (np.array(["a"]), lambda name: tf.io.decode_image(tf.io.read_file(name)), "of unknown shape"),
    ],
)
def test_items_that_cannot_be_mapped_are_refused(items, function, message):
    with pytest.raises(UsageError, match=message):
        kf.data.mapped(items, function)
    with pytest.raises(UsageError, match=r"kf\.data\.mapped\(readers=0\): must be an integer of at least 1"):
        kf.data.mapped(3, tf.identity, readers=0)
