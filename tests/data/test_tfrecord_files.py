"""TFRecord files as samples by index, in the loop and in ``fit``, and the index: made once, kept, made anew."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.data import tfrecord_files
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


def written(path: Path, contents: list[bytes]) -> Path:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for one in contents:
            writer.write(one)
    return path


@pytest.fixture
def files(tmp_path: Path) -> str:
    """The points in three files, as a pattern."""
    for number, rows in enumerate(np.array_split(np.arange(SAMPLES), [20, 21])):
        written(tmp_path / f"part-{number}", [example(X[row], Y[row]) for row in rows])
    return str(tmp_path / "part-*")


def test_samples_are_those_of_the_files_in_the_order_of_the_indices(files):
    records = kf.data.tfrecords(files, parse, readers=3)
    assert_takes_points(records, dtype="float32")
    assert int(records.dataset(16).cardinality()) == 4


def test_many_files_are_open_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord_files, "_MOST_OPEN", 2)
    paths = [written(tmp_path / f"{number}", [example(X[number], Y[number])]) for number in range(6)]
    records = kf.data.tfrecords(paths, parse)
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
    for given, message in (({"y": Y}, r"fit\(y=\.\.\.\) with TFRecords"), ({"batch_size": -1}, "batch_size=-1")):
        with pytest.raises(UsageError, match=message):
            in_job(compiled(network()), records, **given)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda record: tf.io.parse_single_example(record, {"x": tf.io.VarLenFeature(tf.float32)}), "gives a SparseT"),
        (lambda record: tf.io.parse_tensor(record, tf.float32), "gives a tensor of unknown shape.*ensure_shape"),
    ],
)
def test_what_parse_makes_is_dense_and_of_known_rank(files, made, message):
    with pytest.raises(UsageError, match=message):
        kf.data.tfrecords(files, made)


def test_files_that_do_not_fit_are_refused(files, tmp_path):
    for given, message in ((str(tmp_path / "none-*"), "no file has such a name"), ([], "give at least one file")):
        with pytest.raises(UsageError, match=message):
            kf.data.tfrecords(given, parse)
    with pytest.raises(UsageError, match=r"readers=0\): must be an integer of at least 1"):
        kf.data.tfrecords(files, parse, readers=0)
    with pytest.raises(UsageError, match="the 1 files hold no record"):
        kf.data.tfrecords(written(tmp_path / "empty", []), parse)


def test_a_file_that_changes_under_the_job_is_told(files, tmp_path):
    records = kf.data.tfrecords(files, parse)
    path = tmp_path / "part-0"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UsageError, match=r"part-0 has changed since its index was read: record 19"):
        records.take(np.array([19]))


# ---- the index of a file ---------------------------------------------------------------------------------------------

CONTENTS = [b"first", b"", b"third" * 100]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "some.tfrecord", CONTENTS)


def test_an_index_says_where_the_records_are(path):
    index, content = tfrecord_files.record_index(path), path.read_bytes()
    assert len(index) == 3
    assert [content[at + 12 : at + 12 + n] for at, n in zip(index.offsets, index.lengths, strict=True)] == CONTENTS
    assert len(tfrecord_files.record_index(written(path.with_name("empty"), []))) == 0


def test_an_index_is_kept_beside_the_file_and_made_once(path, monkeypatch):
    made = tfrecord_files.record_index(path)
    assert [one.name for one in path.parent.iterdir() if one != path] == [".some.tfrecord.index.npz"]
    monkeypatch.setattr(tfrecord_files, "_scanned", None)
    np.testing.assert_array_equal(tfrecord_files.record_index(path).offsets, made.offsets)


def test_an_index_is_made_anew_where_the_file_has_changed_or_it_is_torn(path):
    tfrecord_files.record_index(path)
    kept = path.with_name(".some.tfrecord.index.npz")
    written(path, [b"other", b"others"])
    assert tfrecord_files.record_index(path).lengths.tolist() == [5, 6]
    status = path.stat()
    written(path, [b"other2", b"other"])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10))
    assert tfrecord_files.record_index(path).lengths.tolist() == [6, 5], "of the same size"
    kept.write_bytes(kept.read_bytes()[:100])
    assert tfrecord_files.record_index(path).lengths.tolist() == [6, 5]


def test_links_that_another_user_has_put_in_its_place_are_not_followed(path, tmp_path):
    kept, others = path.with_name(".some.tfrecord.index.npz"), tmp_path / "others"
    others.write_text("theirs")
    kept.with_name(f"{kept.name}.{os.getpid()}.new").symlink_to(others)
    tfrecord_files.record_index(path)
    kept.unlink()
    kept.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="symbolic links"):
        tfrecord_files.record_index(path)
    assert others.read_text() == "theirs"
    assert not (tmp_path / "nowhere").exists()


def test_others_wait_for_the_one_that_makes_an_index(path, monkeypatch):
    scanned, made, waits = tfrecord_files._scanned, [], threading.Event()

    def slowly(one: Path) -> object:
        made.append(one)
        assert waits.wait(180.0)
        return scanned(one)

    monkeypatch.setattr(tfrecord_files, "_scanned", slowly)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(tfrecord_files.record_index(path)))) for _ in range(3)]
    for one in threads:
        one.start()
    waits.set()
    for one in threads:
        one.join(180.0)
    assert (found, len(made)) == ([3, 3, 3], 1)


def test_files_of_one_name_have_indices_of_their_own_in_a_folder(path, tmp_path):
    other = tmp_path / "other" / path.name
    other.parent.mkdir()
    written(other, [b"one"])
    folder = tmp_path / "indices" / "deep"
    assert (len(tfrecord_files.record_index(path, folder)), len(tfrecord_files.record_index(other, folder))) == (3, 1)
    assert len(list(folder.iterdir())) == 2


def damaged(path: Path, how: str) -> str:
    """Makes the file unfit; returns the message of its refusal."""
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
        return "there is no file"
    made, message = {
        "truncated in a record": (content[:-100], r"is truncated: record 2 begins at byte 37 and does not end"),
        "truncated in a length": (content[:40], r"is truncated: record 2 begins at byte 37"),
        "gzip": (gzip.compress(content), r"is compressed \(gzip\): no place in it"),
        "text": (b"a,b,c\n1,2,3\n", r"is no TFRecord file: it begins with b'a,b,c"),
        "tiny": (b"a", "is no TFRecord file"),
        "damaged": (content[:37] + b"\xff" * 7 + content[44:], r"is damaged: at byte 37, where record 2 should begin"),
    }[how]
    path.write_bytes(made)
    return message


@pytest.mark.parametrize(
    "how", ["truncated in a record", "truncated in a length", "gzip", "text", "tiny", "damaged", "gone"]
)
def test_a_file_that_has_no_index_is_refused_by_what_it_is(path, how):
    message = damaged(path, how)
    with pytest.raises(UsageError, match=message):
        tfrecord_files.record_index(path)
    assert [one for one in path.parent.iterdir() if one != path] == [], "nothing half made stays"


def test_a_folder_that_cannot_hold_an_index_is_refused_with_the_way_out(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be kept in .*: give index=FOLDER"):
        tfrecord_files.record_index(path, tmp_path / "file")
