"""A folder of checkpoints, whatever happens while one is written, and the claim of a job on it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.checkpoints.folder import (
    CheckpointFolder,
    FolderInUse,
    claim,
    find,
    find_named,
    has_step,
    names_in,
    published,
    release,
)
from kungfu.runtime.checkpoints.manifest import Manifest, read_manifest, write_manifest
from kungfu.runtime.core.terms import Terms


def writing(step: int, content: bytes = b"state"):
    def write(path: Path) -> None:
        (path / "state").write_bytes(content)
        write_manifest(Manifest(step, 1, 1, Terms(), files={"state": len(content)}), path)

    return write


def publish(folder: Path, *steps: int, keep: int = 3) -> list[Path]:
    """The checkpoints of these steps, published one after the other."""
    return [CheckpointFolder(folder, keep).publish(step, writing(step)) for step in steps]


def visible(path: Path) -> list[str]:
    """What is in a folder, beside the lock on it."""
    return sorted(one.name for one in path.iterdir() if one.name != ".lock")


def test_the_newest_stay_and_latest_names_the_last(tmp_path):
    folder = tmp_path / "kept"
    _, second, last = publish(folder, 10, 20, 15, keep=2)
    assert published(folder) == [last, second]
    assert find(folder) == last == folder / "step-00000015", "the newest is the last one, not that of the most steps"
    assert visible(folder) == ["latest", "step-00000015", "step-00000020"]


@pytest.mark.parametrize("times", [(3000, 2000, 1000), (1000, 1000, 1000)], ids=["stepped back", "restored"])
def test_the_order_is_that_of_publishing_whatever_the_clock_says(tmp_path, times):
    for time, step in zip(times, (20, 9, 15), strict=True):
        (made,) = publish(tmp_path, step, keep=2)
        os.utime(made / "kungfu.json", (time, time))
        assert published(tmp_path)[0] == made == find(tmp_path), "what was just published is never pruned"
    assert [path.name for path in published(tmp_path)] == ["step-00000015", "step-00000009"]
    (tmp_path / "latest").unlink()
    assert find(tmp_path) == made


def test_a_writer_killed_before_it_moved_latest_has_published_the_newest(tmp_path):
    publish(tmp_path, 1)
    before = (tmp_path / "latest").read_text()
    (second,) = publish(tmp_path, 2)
    (tmp_path / "latest").write_text(before)
    assert find(tmp_path) == second


def test_a_number_that_cannot_be_read_counts_as_none(tmp_path):
    first, second = publish(tmp_path, 1, 2)
    for text in ("", "many", "-3", "9" * 5000, "\N{SUPERSCRIPT TWO}"):
        (first / "published").write_text(text)
        assert published(tmp_path) == [second, first]


def test_a_link_in_the_place_of_the_new_latest_is_not_followed(tmp_path):
    folder, others = tmp_path / "kept", tmp_path / "others"
    folder.mkdir()
    others.write_text("theirs")
    (folder / f".latest-{os.getpid()}").symlink_to(others)
    publish(folder, 1)
    assert others.read_text() == "theirs"
    assert visible(folder) == ["latest", "step-00000001"]


def test_a_step_that_comes_again_gets_a_name_of_its_own(tmp_path):
    folder = CheckpointFolder(tmp_path)
    first = folder.publish(7, writing(7, b"old"))
    second = folder.publish(7, writing(7, b"new"))
    assert (first.name, second.name) == ("step-00000007", "step-00000007.2")
    assert find(tmp_path) == second
    assert (first / "state").read_bytes() == b"old"


def test_a_disk_that_fails_leaves_the_previous_one_and_nothing_else(tmp_path):
    (first,) = publish(tmp_path, 1)

    def full(path: Path) -> None:
        (path / "state").write_bytes(b"half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        CheckpointFolder(tmp_path).publish(2, full)
    assert find(tmp_path) == first
    assert visible(tmp_path) == ["latest", first.name]


def test_what_a_killed_writer_left_behind_never_counts_and_is_swept_by_the_next(tmp_path):
    (first,) = publish(tmp_path, 1)
    left = tmp_path / ".writing-2-123"
    left.mkdir()
    writing(2)(left)
    assert find(tmp_path) == first
    assert publish(tmp_path, 3) == [find(tmp_path)]
    assert not left.exists()


def test_a_writer_that_was_only_late_gives_nothing_a_name(tmp_path):
    def overtaken(path: Path) -> None:
        writing(1)(path)
        publish(tmp_path, 5)  # another peer leads by now

    with pytest.raises(OSError, match="No such file"):
        CheckpointFolder(tmp_path).publish(1, overtaken)
    assert [path.name for path in published(tmp_path)] == ["step-00000005"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda newest: (newest / "state").write_bytes(b"sta"), "state has 3 of 5 bytes"),
        (shutil.rmtree, "step-00000002 is no whole checkpoint of kungfu"),
    ],
    ids=["cut off", "removed"],
)
def test_a_damaged_one_is_refused_and_the_one_before_it_named(tmp_path, damage, message):
    first, second = publish(tmp_path, 1, 2)
    damage(second)
    with pytest.raises(UsageError, match=f"{message}.*{first} is whole: resume from that path"):
        find(tmp_path)
    assert find(first) == first
    assert read_manifest(first).step == 1
    (first / "kungfu.json").write_text("{")
    with pytest.raises(UsageError, match=f"{message}.*no other is there"):
        find(tmp_path)


def test_a_step_is_in_a_folder_if_a_whole_checkpoint_is_of_it(tmp_path):
    assert not has_step(tmp_path, 5)
    (made,) = publish(tmp_path, 5)
    assert [has_step(tmp_path, step) for step in (4, 5)] == [False, True]
    (made / "state").write_bytes(b"sta")
    assert not has_step(tmp_path, 5)


def test_a_folder_without_a_checkpoint_has_none(tmp_path):
    assert find(tmp_path) is None
    assert find(tmp_path / "missing") is None


# ---- two jobs with one folder: the second is refused, and neither touches the other's files -------------------------

_HOLD = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(lock, sys.argv[2].encode())
fcntl.lockf(lock, fcntl.LOCK_SH)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(folder: Path, writer: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed the folder, until the block ends."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-I", "-S", "-c", _HOLD, str(folder / ".lock"), writer]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_job_is_refused_by_the_name_of_the_first_until_that_has_ended(tmp_path):
    folder, second = tmp_path / "kept", CheckpointFolder(tmp_path / "kept", job="two")
    with held_elsewhere(folder, "job one") as first:
        left = folder / ".writing-one-7-ab"
        left.mkdir()
        with pytest.raises(FolderInUse, match=r"kept is in use: job one writes its checkpoints there.* give another"):
            second.publish(1, writing(1))
        assert visible(folder) == [left.name]
        assert CheckpointFolder(folder, job="one").publish(7, writing(7)) == published(folder)[0]
        with pytest.raises(FolderInUse):
            second.publish(1, writing(1))
        first.kill()
        first.wait()
    made = second.publish(8, writing(8))
    assert published(folder)[0] == made
    assert (made / "published").read_text() == "2 two\n"
    release(folder)


def test_a_folder_that_was_replaced_is_claimed_anew(tmp_path):
    folder = tmp_path / "kept"
    assert claim(folder, "job one")
    folder.rename(tmp_path / "before")
    assert claim(folder, "job one")
    assert (folder / ".lock").read_text() == "job one\n"
    release(folder)


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "others").write_text("theirs")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".lock").symlink_to(tmp_path / "others")
    assert not claim(tmp_path / "kept", "job one")
    assert (tmp_path / "others").read_text() == "theirs"


def test_where_nothing_can_be_locked_a_job_sweeps_its_own_files_only(tmp_path, monkeypatch):
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", unknown)
    for name in (".writing-one-3-ab", ".writing-two-4-cd"):
        (tmp_path / name).mkdir()
    CheckpointFolder(tmp_path, job="two").publish(5, writing(5))
    assert visible(tmp_path) == [".writing-one-3-ab", "latest", "step-00000005"]


# ---- names -----------------------------------------------------------------------------------------------------------


def named(folder: Path, step: int, *names: str, keep: int = 1) -> Path:
    return CheckpointFolder(folder, keep).publish(step, writing(step), names=names)


def test_a_name_moves_to_the_newest_in_one_step_and_keeps_its_checkpoint(tmp_path):
    first = named(tmp_path, 1, "best", "first")
    assert find(tmp_path / "best") == first == find_named(tmp_path, "best"), "by number, which stays as it is"
    second = named(tmp_path, 2, "best")
    publish(tmp_path, 3, 4, keep=1)
    assert visible(tmp_path) == ["best", "first", "latest", "step-00000001", "step-00000002", "step-00000004"]
    assert (find(tmp_path / "best"), find(tmp_path / "first")) == (second, first)
    assert names_in(tmp_path) == ["best", "first"]
    named(tmp_path, 5, "first", "best")
    assert visible(tmp_path) == ["best", "first", "latest", "step-00000005"], "what has no name any more is pruned"
    assert (tmp_path / "best" / "state").read_bytes() == b"state"


def test_a_writer_that_was_killed_before_it_moved_a_name_leaves_the_old_one(tmp_path):
    first = named(tmp_path, 1, "best")
    (tmp_path / ".linking-0a").symlink_to("step-00000009")
    assert find(tmp_path / "best") == first
    named(tmp_path, 2, keep=3)
    assert visible(tmp_path) == ["best", "latest", "step-00000001", "step-00000002"]


def test_a_name_of_nothing_and_a_name_of_what_was_removed_are_told_apart(tmp_path):
    named(tmp_path, 1, "best")
    with pytest.raises(UsageError, match=r"no checkpoint 'worst' in .*; named there: best$"):
        find_named(tmp_path, "worst")
    assert find(tmp_path / "worst") is None
    shutil.rmtree(tmp_path / "step-00000001")
    assert not find_named(tmp_path, "best").exists()
    with pytest.raises(UsageError, match="step-00000001 is no whole checkpoint"):
        find(tmp_path / "best")
    assert named(tmp_path, 2, "best") == find(tmp_path / "best")


def test_a_folder_of_somebody_else_with_the_name_is_left_alone(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "theirs").touch()
    with pytest.raises(OSError, match="directory"):
        named(tmp_path, 1, "best")
    assert visible(tmp_path) == ["best", "latest", "step-00000001"]


def test_a_resumed_run_takes_names_over_that_it_has_not_given_itself(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    best, worst = named(old, 1, "best", keep=3), named(old, 2, "worst", keep=3)
    shutil.copytree(old / "best", old / "copied")  # as cp -rL does
    own = named(new, 3, "worst")
    CheckpointFolder(new).adopt_names(old)
    assert [find(new / name) for name in ("best", "worst", "copied")] == [best, own, old / "copied"]
    publish(new, 4, 5, keep=1)
    assert worst.exists()
    CheckpointFolder(old).adopt_names(old)
    CheckpointFolder(tmp_path / "none").adopt_names(tmp_path)
    assert not (tmp_path / "none").exists()
