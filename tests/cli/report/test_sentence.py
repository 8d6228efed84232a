"""One event in one sentence."""

from __future__ import annotations

import pytest

from kungfu.cli.report import sentence


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("accepted", "", "kungfu resize 3: accepted"),
        ("carried out", "", "kungfu resize 3: carried out after 4.2 s"),
        ("carried out", "it was so already", "kungfu resize 3: carried out after 4.2 s (it was so already)"),
        ("refused", "training is over", "kungfu resize 3: refused (training is over)"),
    ],
)
def test_a_request_from_outside_is_told_with_what_came_of_it(state: str, reason: str, text: str) -> None:
    event = {"event": "request", "id": "r", "request": "resize 3", "state": state, "reason": reason, "seconds": 4.2}
    assert sentence(event) == text


def test_a_record_with_a_gap_says_what_it_lacks_and_why() -> None:
    lost = {"event": "unrecorded", "file": "events.jsonl", "error": "No space left on device"}
    gap = {
        "event": "gap",
        "file": "metrics.jsonl",
        "from": 10.0,
        "to": 22.5,
        "lines": 50,
        "error": "Input/output error",
    }
    assert sentence(lost) == (
        "events.jsonl cannot be written (No space left on device): training goes on, and so does the record when it "
        "can be written again"
    )
    assert sentence(gap) == "metrics.jsonl lacks 50 lines of 12.5 s, which could not be written (Input/output error)"
