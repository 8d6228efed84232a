"""A file of lines that is read while it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kungfu.event_log.growing_file import GrowingFile


def test_each_line_is_given_once_when_it_is_whole_and_an_empty_one_never(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    growing = GrowingFile(path)
    assert growing.read() == ([], False), "nobody has made it yet"
    with path.open("ab", buffering=0) as file:
        file.write(b"one\n\n  \ntw")
        assert growing.read() == ([b"one"], False)
        assert growing.read() == ([], False)
        file.write(b"o\n")
        assert growing.read() == ([b"two"], False)


def test_a_long_file_comes_in_parts_and_no_line_is_cut_between_them(tmp_path: Path) -> None:
    lines = [b"%d" % number * 7 for number in range(300_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines) + b"\nhalf")
    growing, found = GrowingFile(tmp_path / "lines"), list[bytes]()
    first, has_more = growing.read()
    assert has_more
    assert 0 < len(first) < len(lines)
    found = [*first, *growing.read_all()]
    assert found == lines


def test_of_a_long_file_only_the_end_is_read_at_first_and_then_all_that_comes(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"first\nsecond\nthird\n")
    assert list(GrowingFile(path, at_first_bytes=100).read_all()) == [b"first", b"second", b"third"]
    growing = GrowingFile(path, at_first_bytes=6)
    assert list(growing.read_all()) == [b"third"]
    with path.open("ab") as file:
        file.write(b"fourth\nfifth\n")
    assert list(growing.read_all()) == [b"fourth", b"fifth"]
    within = GrowingFile(path, at_first_bytes=3)
    assert list(within.read_all()) == [], "the line was cut"
    with path.open("ab") as file:
        file.write(b"sixth\n")
    assert list(within.read_all()) == [b"sixth"]


@pytest.mark.timeout(30)
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(OSError, match="is no regular file"):
        GrowingFile(tmp_path / "events.jsonl").read()
