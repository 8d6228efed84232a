"""A folder of checkpoints, whatever happens while one is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.checkpoints import (
    CheckpointFolder,
    Manifest,
    find,
    has_step,
    published,
    read_manifest,
    write_manifest,
)
from kungfu.runtime.core.terms import Terms


def writing(step: int, content: bytes = b"state"):
    def write(path: Path) -> None:
        (path / "state").write_bytes(content)
        write_manifest(Manifest(step, 1, 1, Terms(), files={"state": len(content)}), path)

    return write


def published_steps(folder: CheckpointFolder) -> list[str]:
    return [path.name for path in published(folder.path)]


def aged(path: Path, seconds: int) -> Path:
    """As if it had been written so long ago."""
    stat = (path / "kungfu.json").stat()
    os.utime(path / "kungfu.json", ns=(stat.st_atime_ns, stat.st_mtime_ns - seconds * 10**9))
    return path


def test_the_newest_stay_and_latest_names_the_last(tmp_path):
    folder = CheckpointFolder(tmp_path / "kept", keep=2)
    for age, step in ((30, 10), (20, 20), (10, 15)):
        aged(folder.publish(step, writing(step)), age)
    assert published_steps(folder) == ["step-00000015", "step-00000020"]
    assert find(folder.path) == folder.path / "step-00000015", "the newest is the last one, not that of the most steps"
    assert sorted(path.name for path in folder.path.iterdir()) == ["latest", "step-00000015", "step-00000020"]


def test_a_step_that_comes_again_gets_a_name_of_its_own(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first = aged(folder.publish(7, writing(7, b"old")), 10)
    second = folder.publish(7, writing(7, b"new"))
    assert (first.name, second.name) == ("step-00000007", "step-00000007.2")
    assert find(tmp_path) == second
    assert (first / "state").read_bytes() == b"old"


def test_a_disk_that_fails_leaves_the_previous_one_and_nothing_else(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first = folder.publish(1, writing(1))

    def full(path: Path) -> None:
        (path / "state").write_bytes(b"half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        folder.publish(2, full)
    assert find(tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", first.name]


def test_what_a_killed_writer_left_behind_never_counts_and_is_swept_by_the_next(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first = aged(folder.publish(1, writing(1)), 10)
    left = tmp_path / ".writing-2-123"
    left.mkdir()
    writing(2)(left)
    assert find(tmp_path) == first
    second = folder.publish(3, writing(3))
    assert not left.exists()
    assert find(tmp_path) == second


def test_a_writer_that_was_only_late_gives_nothing_a_name(tmp_path):
    folder = CheckpointFolder(tmp_path)

    def overtaken(path: Path) -> None:
        writing(1)(path)
        folder.publish(5, writing(5))  # another peer leads by now

    with pytest.raises(OSError, match="No such file"):
        folder.publish(1, overtaken)
    assert published_steps(folder) == ["step-00000005"]


def test_a_checkpoint_that_was_named_but_not_yet_pointed_to_is_found(tmp_path):
    folder = CheckpointFolder(tmp_path)
    made = folder.publish(1, writing(1))
    (tmp_path / "latest").unlink()
    assert find(tmp_path) == made


def test_a_damaged_one_is_refused_and_the_one_before_it_named(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first = aged(folder.publish(1, writing(1)), 10)
    second = folder.publish(2, writing(2))
    (second / "state").write_bytes(b"sta")
    with pytest.raises(UsageError, match="state has 3 of 5 bytes") as refused:
        find(tmp_path)
    assert f"{first} is whole: resume from that path" in str(refused.value)
    assert find(first) == first
    assert read_manifest(first).step == 1


def test_where_no_other_is_whole_the_message_says_so(tmp_path):
    only = CheckpointFolder(tmp_path).publish(1, writing(1))
    (only / "kungfu.json").write_text("{")
    with pytest.raises(UsageError, match="no other is there"):
        find(tmp_path)


def test_a_step_is_in_a_folder_if_a_whole_checkpoint_is_of_it(tmp_path):
    folder = CheckpointFolder(tmp_path)
    assert not has_step(tmp_path, 5)
    made = folder.publish(5, writing(5))
    assert [has_step(tmp_path, step) for step in (4, 5)] == [False, True]
    (made / "state").write_bytes(b"sta")
    assert not has_step(tmp_path, 5)


def test_a_folder_without_a_checkpoint_has_none(tmp_path):
    assert find(tmp_path) is None
    assert find(tmp_path / "missing") is None
