"""Records of the program's own as samples, loaded by several threads at once."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.errors import UsageError
from tests.keras.fitting import (
    SAMPLES,
    assert_same,
    assert_takes_points,
    compiled,
    float64,
    in_job,
    network,
    plainly,
    points,
)
from tests.training.linear import linear_run

X, Y = points()


def load(number: int) -> Any:
    return X[number], Y[number]


@pytest.mark.parametrize("readers", [1, 3, 64])
def test_samples_are_in_the_order_of_the_indices_whatever_the_number_of_readers(readers):
    assert_takes_points(kf.data.records(range(SAMPLES), load, readers=readers))


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
    with float64():
        mine, alone, plain = (compiled(network(), metrics=["mae"]) for _ in range(3))
        plainly(plain, X, Y, batch_size=16, epochs=2, validation_data=(X, Y), validation_batch_size=32)
        in_job(mine, records, batch_size=16, epochs=2, validation_data=records.dataset(32))
        assert_same(mine, plain)
        kf.keras.attach(alone)
        alone.run_eagerly = True  # by Keras' own step
        alone.fit(records, batch_size=16, epochs=2, verbose=0, shuffle=False, validation_data=records.dataset(32))
        assert_same(alone, plain)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"records": 3}, r"kf\.data\.records\(\) was given int: it takes a sequence"),
        ({"records": {"a": 1}}, "was given dict"),
        ({"records": []}, "was given no record"),
        ({"load": None}, r"load=None\): must be a function"),
        ({"readers": 0}, r"kf\.data\.records\(readers=0\): must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_is_refused(given, told):
    whole = {"records": range(SAMPLES), "load": load, **given}
    with pytest.raises(UsageError, match=told):
        kf.data.records(whole.pop("records"), **whole)


def test_readers_of_a_loop_are_for_records():
    arrays = X[:, :2].astype(np.float32)
    for data, given, told in (
        (arrays, {"readers": 2}, r"readers=2\): only for records"),
        (kf.data.records(range(SAMPLES), load), {"readers": 2}, "kf.data's functions take it themselves"),
        (range(SAMPLES), {"load": load, "readers": "two"}, r"readers='two'\): must be an integer"),
    ):
        with pytest.raises(UsageError, match=told):
            linear_run().training.batches(data, **given, batch_size=4, epochs=1, seed=0)
