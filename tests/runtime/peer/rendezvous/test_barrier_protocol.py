"""The start of a view: the parts of the time for which training stops."""

from __future__ import annotations

import time

from tests.runtime.peer.running import WITHIN_S, job


def test_the_parts_of_the_time_that_a_new_view_costs_are_no_more_than_the_whole() -> None:
    """`kungfu why` shows them: a user looks for what stops training in the largest one."""
    with job(b"state") as running:
        began = time.monotonic()
        (coordinator,), joining = running.grow(b"blank")
        results = [coordinator, joining.result(WITHIN_S)]
        whole = time.monotonic() - began
    for parts in (result.parts for result in results):
        assert all(0.0 <= seconds <= whole for seconds in parts.values())
        assert parts["state/take and compare"] + parts["state/agree"] <= parts["attach"] + parts["state"] <= whole
        assert parts["attach"] <= parts["state/take and compare"], "the state is compared once all are connected"
