"""One event in one sentence."""

from __future__ import annotations

import pytest

from kungfu.cli.story import sentence


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
