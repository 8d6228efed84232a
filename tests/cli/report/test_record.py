"""Reading what a run left, whole or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kungfu.cli.report import read_events
from kungfu.errors import UsageError
from tests.cli.recorded import GROWN, written


def test_a_whole_record_is_read_in_its_order_without_a_remark(tmp_path: Path) -> None:
    record = read_events(written(tmp_path, GROWN))
    assert list(record.entries) == list(GROWN)
    assert record.remarks == ()


def test_a_half_written_last_line_is_left_out_with_a_remark(tmp_path: Path) -> None:
    with (written(tmp_path, GROWN[:2]) / "events.jsonl").open("a") as file:
        file.write('{"time": 1.0, "eve')
    record = read_events(tmp_path)
    assert len(record.entries) == 2
    assert record.remarks == ("line 3 of events.jsonl is half-written: the run is writing it, or was cut off; "
                              "it was left out",)  # fmt: skip


def test_damaged_lines_and_lines_that_are_no_objects_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'\xff\xfe\n[1]\n\n{"event": "view"}\n')
    record = read_events(tmp_path)
    assert record.entries == ({"event": "view"},)
    assert [remark.split(" of ")[0] for remark in record.remarks] == ["line 1", "line 2"]


@pytest.mark.parametrize("content", ["", "\n\n", "[]\n"])
def test_a_record_in_which_nothing_stands_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "events.jsonl").write_text(content)
    with pytest.raises(UsageError, match="no line of it is a record"):
        read_events(tmp_path)


def test_a_folder_without_a_record_and_no_folder_at_all_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the folder holds no events"):
        read_events(tmp_path)
    with pytest.raises(UsageError, match="there is no such folder"):
        read_events(tmp_path / "none")
