"""A record of steps is read line by line, and only where it is wanted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.report.metrics import newest_step, read_rows, rows_between, rows_in_order
from kungfu.cli.why import missing_steps
from kungfu.errors import UsageError
from kungfu.event_log.codec import row_in
from tests.cli.recorded import measured
from tests.event_log.made import made


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
    def row(step: int, **more: Any) -> dict[str, Any]:
        return {"step": step, **more}

    rows = [row(step) for step in range(1, 20_001)]
    rows[9_000:9_000] = [row(8_999, loss=1.0), row(9_000, loss=2.0), row(3, loss=3.0), {"no": "step"}]
    told = dict(rows_in_order(rows))
    assert [*told] == [*range(1, 20_001)]
    assert (told[8_999].get("loss"), told[9_000].get("loss"), told[3].get("loss")) == (1.0, 2.0, None)


def test_a_damaged_line_with_an_enormous_step_makes_one_gap_at_once() -> None:
    found = missing_steps([made(event="recovered", step=10**15)], [{"step": 1}, {"step": 10**17}])
    assert found == [f"steps 2 to {10**17 - 1} are not in metrics.jsonl: rank 0 was lost before it reported them"]
