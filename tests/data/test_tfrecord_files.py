"""TFRecord files as samples by index, in the loop and in ``fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from tests.keras.fitting import SAMPLES, assert_same, assert_takes_points, compiled, float64, in_job, network, points
from tests.training.linear import linear_run

FEATURES = {"x": tf.io.FixedLenFeature([3], tf.float32), "y": tf.io.FixedLenFeature([1], tf.float32)}
X, Y = (one.astype(np.float32) for one in points())


def parse(record: Any) -> Any:
    found = tf.io.parse_single_example(record, FEATURES)
    return found["x"], found["y"]


def example(x: Any, y: Any) -> bytes:
    values = {"x": x, "y": y}
    feature = {name: tf.train.Feature(float_list=tf.train.FloatList(value=one)) for name, one in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


@pytest.fixture
def files(tmp_path: Path) -> str:
    """The points in three files, as a pattern."""
    for number, rows in enumerate(np.array_split(np.arange(SAMPLES), [20, 21])):
        with tf.io.TFRecordWriter(str(tmp_path / f"part-{number}")) as writer:
            for row in rows:
                writer.write(example(X[row], Y[row]))
    return str(tmp_path / "part-*")


def test_samples_are_those_of_the_files_in_the_order_of_the_indices(files):
    records = kf.data.tfrecords(files, parse, readers=3)
    assert_takes_points(records, dtype="float32")
    assert int(records.dataset(16).cardinality()) == 4


def test_many_files_are_open_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("kungfu.data.tfrecord_files._MOST_OPEN", 2)
    for number in range(6):
        with tf.io.TFRecordWriter(str(tmp_path / f"{number}")) as writer:
            writer.write(example(X[number], Y[number]))
    records = kf.data.tfrecords([tmp_path / f"{number}" for number in range(6)], parse)
    for number in (0, 1, 2, 3, 4, 5, 0):
        np.testing.assert_array_equal(records.take(np.array([number]))[0][0], X[number])
        assert len(records._open) <= 3


def test_a_function_that_loads_them_once_more_is_refused(files):
    records = kf.data.tfrecords(files, parse)
    with pytest.raises(UsageError, match=r"load=\.\.\.\) was given TFRecords, which makes samples itself"):
        linear_run().training.batches(records, load=str, batch_size=1, epochs=1, seed=0)


@pytest.mark.slow
def test_fit_has_the_same_numbers_in_a_job_and_alone(files):
    records = kf.data.tfrecords(files, parse)
    with float64():
        mine, alone = (compiled(network(), metrics=["mae"]) for _ in range(2))
        in_job(mine, records, batch_size=16, epochs=2, shuffle=True, validation_data=records.dataset(32))
        kf.keras.attach(alone)
        alone.fit(records, batch_size=16, epochs=2, verbose=0, validation_data=records.dataset(32))
        assert_same(mine, alone)
    for given, told in (({"y": Y}, r"fit\(y=\.\.\.\) with TFRecords"), ({"batch_size": -1}, "batch_size=-1")):
        with pytest.raises(UsageError, match=told):
            in_job(compiled(network()), records, **given)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda record: tf.io.parse_single_example(record, {"x": tf.io.VarLenFeature(tf.float32)}), "gives a SparseT"),
        (lambda record: tf.io.parse_tensor(record, tf.float32), "gives a tensor of unknown shape.*ensure_shape"),
    ],
)
def test_what_parse_makes_is_dense_and_of_known_rank(files, made, told):
    with pytest.raises(UsageError, match=told):
        kf.data.tfrecords(files, made)


def test_files_that_do_not_fit_are_refused(files, tmp_path):
    for given, told in ((str(tmp_path / "none-*"), "no file has such a name"), ([], "give at least one file")):
        with pytest.raises(UsageError, match=told):
            kf.data.tfrecords(given, parse)
    with pytest.raises(UsageError, match=r"readers=0\): must be an integer of at least 1"):
        kf.data.tfrecords(files, parse, readers=0)
    empty = tmp_path / "empty"
    tf.io.TFRecordWriter(str(empty)).close()
    with pytest.raises(UsageError, match="the 1 files hold no record"):
        kf.data.tfrecords(empty, parse)


def test_a_file_that_changes_under_the_job_is_told(files, tmp_path):
    records = kf.data.tfrecords(files, parse)
    path = tmp_path / "part-0"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UsageError, match=r"part-0 has changed since its index was read: record 19"):
        records.take(np.array([19]))
