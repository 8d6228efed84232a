"""A folder of checkpoints, whatever happens while one is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.checkpoints.folder import CheckpointFolder, find, has_step, published
from kungfu.runtime.checkpoints.manifest import Manifest, read_manifest, write_manifest
from kungfu.runtime.core.terms import Terms


def writing(step: int, content: bytes = b"state"):
    def write(path: Path) -> None:
        (path / "state").write_bytes(content)
        write_manifest(Manifest(step, 1, 1, Terms(), files={"state": len(content)}), path)

    return write


def published_steps(folder: CheckpointFolder) -> list[str]:
    return [path.name for path in published(folder.path)]


def visible(path: Path) -> list[str]:
    """What is in a folder, beside the lock on it."""
    return sorted(one.name for one in path.iterdir() if one.name != ".lock")


def timed(path: Path, seconds: int) -> Path:
    """As if it had been written at this time of a clock."""
    os.utime(path / "kungfu.json", (seconds, seconds))
    return path


def test_the_newest_stay_and_latest_names_the_last(tmp_path):
    folder = CheckpointFolder(tmp_path / "kept", keep=2)
    for step in (10, 20, 15):
        folder.publish(step, writing(step))
    assert published_steps(folder) == ["step-00000015", "step-00000020"]
    assert find(folder.path) == folder.path / "step-00000015", "the newest is the last one, not that of the most steps"
    assert visible(folder.path) == ["latest", "step-00000015", "step-00000020"]


@pytest.mark.parametrize("times", [(3000, 2000, 1000), (1000, 1000, 1000)], ids=["stepped back", "restored"])
def test_the_order_is_that_of_publishing_whatever_the_clock_says(tmp_path, times):
    folder = CheckpointFolder(tmp_path, keep=2)
    for time, step in zip(times, (20, 9, 15), strict=True):
        made = timed(folder.publish(step, writing(step)), time)
        assert published(tmp_path)[0] == made == find(tmp_path), "what was just published is never pruned"
    assert published_steps(folder) == ["step-00000015", "step-00000009"]
    (tmp_path / "latest").unlink()
    assert find(tmp_path) == made


def test_a_writer_killed_before_it_moved_latest_has_published_the_newest(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.publish(1, writing(1))
    before = (tmp_path / "latest").read_text()
    second = folder.publish(2, writing(2))
    (tmp_path / "latest").write_text(before)
    assert find(tmp_path) == second


def test_a_number_that_cannot_be_read_counts_as_none(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first, second = (folder.publish(step, writing(step)) for step in (1, 2))
    for text in ("", "many", "-3", "9" * 5000, "\N{SUPERSCRIPT TWO}"):
        (first / "published").write_text(text)
        assert published(tmp_path) == [second, first]


def test_a_link_in_the_place_of_the_new_latest_is_not_followed(tmp_path):
    folder, others = CheckpointFolder(tmp_path / "kept"), tmp_path / "others"
    folder.path.mkdir()
    others.write_text("theirs")
    (folder.path / f".latest-{os.getpid()}").symlink_to(others)
    folder.publish(1, writing(1))
    assert others.read_text() == "theirs"
    assert visible(folder.path) == ["latest", "step-00000001"]


def test_a_latest_that_names_what_is_not_there_is_refused(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first, second = (folder.publish(step, writing(step)) for step in (1, 2))
    shutil.rmtree(second)
    with pytest.raises(UsageError, match=f"{first} is whole: resume from that path"):
        find(tmp_path)


def test_a_step_that_comes_again_gets_a_name_of_its_own(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first = folder.publish(7, writing(7, b"old"))
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
    assert visible(tmp_path) == ["latest", first.name]


def test_what_a_killed_writer_left_behind_never_counts_and_is_swept_by_the_next(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first = folder.publish(1, writing(1))
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


def test_a_damaged_one_is_refused_and_the_one_before_it_named(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first = folder.publish(1, writing(1))
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
