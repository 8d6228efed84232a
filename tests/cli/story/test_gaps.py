"""Steps of which nobody lived to tell."""

from __future__ import annotations

from kungfu.cli.story import gaps


def rows(*steps: int) -> list[dict[str, int]]:
    return [{"step": step} for step in steps]


def test_a_record_that_is_whole_has_no_gap() -> None:
    again = [{"event": "recovered", "step": 3}, {"event": "finished", "steps": 5}]
    assert gaps(again, rows(2, 3, 3, 4, 5)) == [], "a run that was resumed begins later, and a step may be done twice"


def test_a_step_that_was_redone_after_the_loss_is_told_by_the_next_rank_0() -> None:
    undone = [{"event": "recovered", "step": 6}]
    assert gaps(undone, rows(4, 8)) == [
        "steps 5 to 7 are not in metrics.jsonl: rank 0 was lost before it told of them",
    ]


def test_every_row_is_named_with_what_is_known_of_it_up_to_the_last_step() -> None:
    events = [{"event": "recovered", "step": 5}, {"event": "finished", "steps": 12}]
    assert gaps(events, rows(4, 6, 7, 9, 10)) == [
        "step 5 is not in metrics.jsonl: rank 0 was lost before it told of it",
        "step 8 is not in metrics.jsonl",
        "steps 11 to 12 are not in metrics.jsonl",
    ]


def test_where_nothing_was_measured_nothing_is_missed() -> None:
    assert gaps([{"event": "recovered", "step": 5}], []) == []
