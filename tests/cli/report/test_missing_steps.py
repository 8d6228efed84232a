"""Steps of which nobody lived to tell."""

from __future__ import annotations

from kungfu.cli.why import missing_steps
from tests.event_log.made import made


def rows(*steps: int) -> list[dict[str, int]]:
    return [{"step": step} for step in steps]


def test_a_record_that_is_whole_has_no_gap() -> None:
    again = [made(event="recovered", step=3), made(event="finished", steps=5)]
    resumed = rows(2, 3, 3, 4, 5)  # a run that was resumed begins later, and a step may be done twice
    assert missing_steps(again, resumed) == missing_steps(again, []) == []


def test_every_row_is_named_with_what_is_known_of_it_up_to_the_last_step() -> None:
    events = [made(event="recovered", step=5), made(event="finished", steps=12)]
    assert missing_steps(events, rows(4, 6, 7, 9, 10)) == [
        "step 5 is not in metrics.jsonl: rank 0 was lost before it reported it",
        "step 8 is not in metrics.jsonl",
        "steps 11 to 12 are not in metrics.jsonl",
    ]
    undone = [made(event="recovered", step=6)]  # a step that was redone is told by the next rank 0
    lost = "steps 5 to 7 are not in metrics.jsonl: rank 0 was lost before it reported them"
    assert missing_steps(undone, rows(4, 8)) == [lost]


def test_steps_that_could_not_be_written_are_told_apart_from_those_of_a_lost_rank_0() -> None:
    timed = [{"step": step, "time": 100.0 + step} for step in (1, 2, 6, 7, 9)]
    full = {"event": "gap", "file": "metrics.jsonl", "from": 104.5, "to": 105.5, "lines": 3, "error": "No space left"}
    elsewhere, unwritten = {**full, "file": "trace.jsonl", "from": 100.0, "to": 200.0}, "could not be written"
    assert missing_steps([made(**elsewhere), made(**full), made(event="finished", steps=12)], timed) == [
        f"steps 3 to 5 are not in metrics.jsonl: their figures {unwritten} (No space left)",
        "step 8 is not in metrics.jsonl",
        "steps 10 to 12 are not in metrics.jsonl",
    ]
    last = missing_steps([made(**{**full, "to": 112.0}), made(event="finished", steps=4)], timed[:1])
    assert last == [f"steps 2 to 4 are not in metrics.jsonl: their figures {unwritten} (No space left)"]
