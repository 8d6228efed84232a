"""A record is read as far as it is written, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import RECORD_VERSION, RecordEvent
from kungfu.event_log.record_follower import NewRecords, RecordFollower
from tests.cli.recorded import GROWN, measured, written


def test_only_what_is_new_is_given_and_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    follower = RecordFollower(tmp_path)
    assert follower.take() == NewRecords(), "the run has made no file yet"
    written(tmp_path, GROWN[:2], metrics=[measured(1)])
    first = follower.take()
    assert (first.events, [row["step"] for row in first.rows]) == (GROWN[:2], [1])
    assert follower.take() == NewRecords()
    line = event_to_line(GROWN[2])
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(line[:20])
        file.flush()
        assert follower.take() == NewRecords()
        file.write(line[20:] + "\n")
    assert follower.take().events == (GROWN[2],)
    assert follower.damaged == 0


def test_a_long_record_comes_in_parts_and_all_of_it(tmp_path: Path) -> None:
    written(tmp_path, GROWN, metrics=[measured(step) for step in range(1, 20_001)])
    follower, steps, events = RecordFollower(tmp_path), list[int](), list[object]()
    for _ in range(100):
        new = follower.take()
        steps += [row["step"] for row in new.rows]
        events += new.events
        if not follower.has_more:
            break
    assert steps == list(range(1, 20_001))
    assert tuple(events) == GROWN


def test_damaged_lines_are_counted_and_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    written(tmp_path, GROWN[:1], metrics=[measured(1)])
    for name in ("events", "metrics"):
        with (tmp_path / f"{name}.jsonl").open("ab") as file:
            file.write(b'\xff{\n[1]\n"text"\n')
    follower = RecordFollower(tmp_path)
    assert (len(follower.take().rows), follower.damaged) == (1, 6)
    other = event_to_line(RecordEvent(version=RECORD_VERSION + 1))
    (tmp_path / "events.jsonl").write_text(f"{other}\n")
    with pytest.raises(UsageError, match=f"version {RECORD_VERSION + 1}, and this kungfu reads"):
        RecordFollower(tmp_path).take()
