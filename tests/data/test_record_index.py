"""The index of a TFRecord file: made once, kept, made anew where the file has changed."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from kungfu.data import record_index as module
from kungfu.data.record_index import record_index
from kungfu.errors import UsageError

CONTENTS = [b"first", b"", b"third" * 100]


def written(path: Path, contents: list[bytes]) -> Path:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for one in contents:
            writer.write(one)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "some.tfrecord", CONTENTS)


def test_it_says_where_the_records_are(path):
    index, content = record_index(path), path.read_bytes()
    assert len(index) == 3
    assert [content[at + 12 : at + 12 + n] for at, n in zip(index.offsets, index.lengths, strict=True)] == CONTENTS
    assert len(record_index(written(path.with_name("empty"), []))) == 0


def test_it_is_kept_beside_the_file_and_made_once(path, monkeypatch):
    made = record_index(path)
    assert [one.name for one in path.parent.iterdir() if one != path] == [".some.tfrecord.index.npz"]
    monkeypatch.setattr(module, "_scanned", None)
    np.testing.assert_array_equal(record_index(path).offsets, made.offsets)


def test_it_is_made_anew_where_the_file_has_changed_or_the_kept_one_is_torn(path):
    record_index(path)
    kept = path.with_name(".some.tfrecord.index.npz")
    written(path, [b"other", b"others"])
    assert record_index(path).lengths.tolist() == [5, 6]
    status = path.stat()
    written(path, [b"other2", b"other"])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10))
    assert record_index(path).lengths.tolist() == [6, 5], "of the same size"
    kept.write_bytes(kept.read_bytes()[:100])
    assert record_index(path).lengths.tolist() == [6, 5]


def test_links_that_another_user_has_put_in_its_place_are_not_followed(path, tmp_path):
    kept, others = path.with_name(".some.tfrecord.index.npz"), tmp_path / "others"
    others.write_text("theirs")
    kept.with_name(f"{kept.name}.{os.getpid()}.new").symlink_to(others)
    record_index(path)
    kept.unlink()
    kept.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="symbolic links"):
        record_index(path)
    assert others.read_text() == "theirs"
    assert not (tmp_path / "nowhere").exists()


def test_others_wait_for_the_one_that_makes_it(path, monkeypatch):
    scanned, made, waits = module._scanned, [], threading.Event()

    def slowly(one: Path) -> object:
        made.append(one)
        assert waits.wait(180.0)
        return scanned(one)

    monkeypatch.setattr(module, "_scanned", slowly)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(record_index(path)))) for _ in range(3)]
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
    assert (len(record_index(path, folder)), len(record_index(other, folder))) == (3, 1)
    assert len(list(folder.iterdir())) == 2


def damaged(path: Path, how: str) -> str:
    """Makes the file unfit; gives what is told."""
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
        return "there is no file"
    made, told = {
        "truncated in a record": (content[:-100], r"is truncated: record 2 begins at byte 37 and does not end"),
        "truncated in a length": (content[:40], r"is truncated: record 2 begins at byte 37"),
        "gzip": (gzip.compress(content), r"is compressed \(gzip\): no place in it"),
        "text": (b"a,b,c\n1,2,3\n", r"is no TFRecord file: it begins with b'a,b,c"),
        "tiny": (b"a", "is no TFRecord file"),
        "damaged": (content[:37] + b"\xff" * 7 + content[44:], r"is damaged: at byte 37, where record 2 should begin"),
    }[how]
    path.write_bytes(made)
    return told


@pytest.mark.parametrize(
    "how", ["truncated in a record", "truncated in a length", "gzip", "text", "tiny", "damaged", "gone"]
)
def test_a_file_that_has_no_index_is_refused_by_what_it_is(path, how):
    told = damaged(path, how)
    with pytest.raises(UsageError, match=told):
        record_index(path)
    assert [one for one in path.parent.iterdir() if one != path] == [], "nothing half made stays"


def test_a_place_that_cannot_hold_it_is_refused_with_the_way_out(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be kept in .*: give index=FOLDER"):
        record_index(path, tmp_path / "file")
