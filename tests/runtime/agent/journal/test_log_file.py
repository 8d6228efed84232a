"""One file of the record, on disks with and without room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kungfu.runtime.agent.journal.log_file import LogFile, LogGap, merged
from tests.runtime.agent.journal.test_journal import TOO_LARGE, Clock, full_disk


def test_lines_that_find_no_room_are_counted_and_the_file_continues(tmp_path: Path) -> None:
    clock = Clock()
    file = LogFile(tmp_path / "log", clock=clock)
    assert file.write(b"one\ntwo\n") is None
    with full_disk(room_bytes=11):
        assert file.write(b"three is cut in its middle\n") is None
        clock.now = 13.0
        assert file.write(b"four\nfive") is None
    assert file.gap == LogGap(10.0, 13.0, 3, TOO_LARGE)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    clock.now = 14.5
    assert file.write(b"six\n") == LogGap(10.0, 13.0, 3, TOO_LARGE)
    assert file.gap is None
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\nsix\n"


def test_a_disk_that_failed_is_tried_again_once_a_second(tmp_path: Path) -> None:
    """A disk that failed is tried again once a second, and also when the clock was put back."""
    clock = Clock()
    file = LogFile(tmp_path / "log", clock=clock)
    with full_disk():
        file.write(b"lost\n")
    clock.now += 0.9
    assert file.write(b"lost as well, though there is room\n") is None
    assert file.write(b"asked for\n", at_once=True) is not None
    with full_disk():
        file.write(b"lost\n")
    clock.now -= 3600.0
    assert file.write(b"after\n") is not None
    assert (tmp_path / "log").read_text() == "asked for\nafter\n"


def test_a_folder_that_has_become_a_file_costs_the_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "peers").write_text("")
    file = LogFile(tmp_path / "peers" / "peer-0.log", clock=Clock())
    file.write(b"one\n")
    assert file.gap == LogGap(10.0, 10.0, 1, os.strerror(errno.EEXIST))


def test_a_device_without_room_costs_the_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    file = LogFile(tmp_path / "log", clock=Clock())
    file.write(b"one\n")
    assert file.gap == LogGap(10.0, 10.0, 1, os.strerror(errno.ENOSPC))
    file.close()
    file.close()
    assert file.write(b"after the end\n") is None


def test_two_gaps_between_which_nothing_could_be_told_are_one() -> None:
    first = merged(None, LogGap(1.0, 2.0, 3, "first"))
    assert merged(first, LogGap(5.0, 6.0, 4, "second")) == LogGap(1.0, 6.0, 7, "first")
