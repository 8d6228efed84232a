"""Two jobs with one folder of checkpoints: the second is refused, and neither touches the other's files."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kungfu.runtime.checkpoints.folder import CheckpointFolder, published
from kungfu.runtime.checkpoints.folder_lock import FolderInUse, claim, release
from tests.runtime.checkpoints.test_folder import visible, writing

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
