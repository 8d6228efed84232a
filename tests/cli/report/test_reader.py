"""Reading what a run left, whole or not."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kungfu.cli.report.narrative import narrative
from kungfu.cli.report.reader import newest_step, read_events, read_rows, read_start, rows_between, rows_in_order
from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_line, row_in
from kungfu.event_log.events import RECORD_VERSION, RecordEvent, ViewEvent
from tests.cli.recorded import GROWN, measured, written
from tests.event_log.made import KINDS, write_record


def test_a_half_written_last_line_is_left_out_with_a_remark(tmp_path: Path) -> None:
    record = read_events(written(tmp_path, GROWN))
    assert (record.events, record.remarks) == (GROWN, ())
    with (written(tmp_path, GROWN[:2]) / "events.jsonl").open("a") as file:
        file.write('{"time": 1.0, "eve')
    record = read_events(tmp_path)
    assert len(record.events) == 2
    why = "half-written: the run is writing it, or was cut off; it was left out"
    assert record.remarks == (f"line 4 of events.jsonl is {why}",)


HEAD = event_to_line(RecordEvent(version=RECORD_VERSION)).encode() + b"\n"


def test_damaged_lines_and_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    view = b'{"event": "view", "version": 2, "peers": [0]}\n'
    (tmp_path / "events.jsonl").write_bytes(HEAD + b'\xff\xfe\n[1]\n\n{"event": "view"}\n{"event": "new"}\n' + view)
    record = read_events(tmp_path)
    assert record.events == (ViewEvent(version=2, peers=(0,)),)
    assert [remark.split(" of ")[0] for remark in record.remarks] == ["line 2", "line 3", "line 5", "line 6"]


@pytest.mark.parametrize(
    ("first", "found"),
    [
        ('{"event": "record", "version": 2}', "is of version 2"),
        ('{"event": "record", "version": 0}', "is of version 0"),
        ('{"event": "started", "job": "a", "size": 2, "command": []}', "does not say its version"),
        ('{"event": "rec', "does not say its version"),
    ],
)
def test_a_record_of_another_version_is_refused_as_a_whole(tmp_path: Path, first: str, found: str) -> None:
    (tmp_path / "events.jsonl").write_text(f'{first}\n{{"event": "noticed", "peer": 1}}\n')
    for read in (read_events, read_start):
        with pytest.raises(UsageError, match=f"this record {found}, and this kungfu reads version {RECORD_VERSION}"):
            read(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted({one.encode_name for kind in KINDS.values() for one in msgspec.structs.fields(kind)})
LINES = st.builds(
    lambda kind, fields: {**fields, "event": kind},
    st.sampled_from([*sorted(KINDS), "regrouped"]),
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, max_size=6))
def test_no_line_however_odd_makes_the_report_stumble(tmp_path: Path, lines: list[dict[str, object]]) -> None:
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "events.jsonl").write_bytes(HEAD + text.encode())
    record = read_events(tmp_path)
    assert len(record.events) + len(record.remarks) + sum(line["event"] == "record" for line in lines) >= len(lines)
    assert narrative(record.events)
    assert all(isinstance(event.one_line(), str) for event in record.events)


def test_the_start_of_a_job_is_read_without_the_rest_of_a_long_record(tmp_path: Path) -> None:
    written(tmp_path, [GROWN[0], *(20_000 * GROWN[1:2])])
    tracemalloc.start()
    try:
        assert read_start(tmp_path) == GROWN[0]
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert read_start(written(tmp_path, GROWN[1:3])) is None


@pytest.mark.parametrize("content", ["", "\n\n", "[]\n"])
def test_a_record_in_which_nothing_stands_and_none_at_all_are_errors(tmp_path: Path, content: str) -> None:
    (tmp_path / "events.jsonl").write_text(content)
    (empty := tmp_path / "empty").mkdir()
    folders = {tmp_path: "no line of it is a record", empty: "the folder holds no events", empty / "none": "no such"}
    for read in (read_events, read_start):
        for folder, why in folders.items():
            with pytest.raises(UsageError, match=why):
                read(folder)


# ---- steps: read line by line, and only where they are wanted --------------------------------------------------------


def test_lines_that_hold_no_step_are_left_out_and_odd_numbers_are_read_as_json_does(tmp_path: Path) -> None:
    lines = [b'{"step": 1, "loss": NaN}', b"[1]", b'{"step": 2, "name": "\xff"}', b"", b'{"step": 3, "los']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    first, second = read_rows(tmp_path)
    assert math.isnan(first["loss"])
    assert second == {"step": 2, "name": "\ufffd"}
    assert row_in(b"[" * 100_000) is None
    assert row_in(b'{"step": 123456789012345678901234567890}') in (
        {"step": 123456789012345678901234567890}, {"step": 1.2345678901234568e29},
    )  # fmt: skip


def test_a_record_without_steps_and_a_folder_without_a_record_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no metrics\.jsonl"):
        next(read_rows(tmp_path))
    (tmp_path / "metrics.jsonl").write_text("[]\n")
    for read in (lambda: [*read_rows(tmp_path)], lambda: newest_step(tmp_path)):
        with pytest.raises(UsageError, match="no line of it is a record"):
            read()
    assert [*rows_between(tmp_path, 5)] == []


def test_the_steps_of_a_span_are_found_in_a_long_record_with_damaged_lines(tmp_path: Path) -> None:
    rows = [measured(step) for step in range(1, 4001)]
    rows[2000:2000] = [measured(1999, loss=7.0), measured(2000, loss=8.0)]  # a failure undid two steps
    text = "".join(json.dumps(row) + "\n" for row in rows)
    middle = text.index('"step": 2500')
    (tmp_path / "metrics.jsonl").write_text(text[:middle] + "\0" * 70_000 + text[middle:])
    assert (tmp_path / "metrics.jsonl").stat().st_size > 4 * (1 << 16)

    def steps(first: float, last: float = math.inf) -> list[int]:
        return [row["step"] for row in rows_between(tmp_path, first, last)]

    assert steps(3990) == [*range(3990, 4001)]
    assert steps(1, 5) == [1, 2, 3, 4, 5]
    assert steps(2400, 2600) == [*range(2400, 2500), *range(2501, 2601)]
    assert dict(rows_in_order(rows_between(tmp_path, 1999, 2001)))[2000]["loss"] == 8.0
    assert steps(5000) == []
    assert newest_step(tmp_path) == 4000


def test_steps_come_in_their_order_once_also_where_they_were_done_again_after_many(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"step": step} for step in range(1, 20_001)]
    again = [{"step": step, "loss": loss} for step, loss in ((8_999, 1.0), (9_000, 2.0), (3, 3.0))]
    found = dict(rows_in_order([*rows[:9_000], *again, {"no": "step"}, *rows[9_000:]]))
    assert [*found] == [*range(1, 20_001)]
    assert (found[8_999].get("loss"), found[9_000].get("loss"), found[3].get("loss")) == (1.0, 2.0, None)


def test_steps_that_a_restart_has_undone_are_left_out_wherever_one_begins(tmp_path: Path) -> None:
    """From the checkpoints of step 4000, and then of step 6000, each after thousands of steps more than that."""
    runs = [(1, 1, 20_000), (3, 4001, 16_000), (5, 6001, 30_000)]
    rows = [{"step": step, "view": view, "loss": view} for view, begin, end in runs for step in range(begin, end + 1)]
    restarts = [{"event": "restarted", "step": at, "first_view": view} for view, at in ((3, 4000), (5, 6000))]
    write_record(tmp_path, *restarts)
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    kept = [(row["step"], row["loss"]) for row in read_rows(tmp_path)]
    losses = [1] * 4000 + [3] * 2000 + [5] * 24_000
    assert kept == [*enumerate(losses, start=1)]
    assert newest_step(tmp_path) == 30_000
    for first, last in ((3_990, 4_010), (5_990, 6_010), (9_000, 9_003), (15_999, 16_002), (29_999, math.inf)):
        found = [(row["step"], row["loss"]) for row in rows_between(tmp_path, first, last)]
        assert found == [one for one in kept if first <= one[0] <= last]
