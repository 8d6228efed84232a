"""RendezvousTable: who came, who is missing, and one result for all."""

from __future__ import annotations

import pytest

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.peer.rendezvous.rendezvous import Rendezvous, RendezvousTable


def test_a_second_arrival_replaces_the_first_and_the_deadline_names_who_is_missing() -> None:
    meeting: Rendezvous[str, str] = Rendezvous()
    meeting.arrive(0, "old")
    meeting.arrive(0, "new")
    meeting.arrive(7, "stranger")
    with pytest.raises(DeadlineExceeded, match=r"^waited 0\.1 s at barrier 4 of view 2 for rank 1, rank 2$"):
        meeting.everyone(3, deadline_s=0.1, what="barrier 4 of view 2")
    meeting.arrive(1, "there")
    assert meeting.everyone(2, deadline_s=0.0, what="barrier 4") == {0: "new", 1: "there"}


def test_a_key_is_one_meeting_for_all_who_speak_of_it() -> None:
    meetings: RendezvousTable[str, str] = RendezvousTable(lambda: 0.0)
    meetings.at((1, 0)).arrive(1, "early")
    assert meetings.at((1, 0)) is meetings.at((1, 0))
    assert meetings.at((1, 1)) is not meetings.at((1, 0))


def test_old_meetings_are_dropped_but_never_the_one_that_is_asked_for() -> None:
    now = [0.0]
    meetings: RendezvousTable[str, str] = RendezvousTable(lambda: now[0])
    old, other = meetings.at("old"), meetings.at("other")
    now[0] = 601.0
    assert meetings.at("old") is old
    assert meetings.at("other") is not other


def test_a_barrier_in_every_step_keeps_only_the_last_meetings() -> None:
    meetings: RendezvousTable[str, str] = RendezvousTable(lambda: 0.0)
    first, last = meetings.at(0), None
    for number in range(1, 1000):
        last = meetings.at(number)
    assert meetings.at(999) is last
    assert meetings.at(990) is meetings.at(990), "who is late still finds the others"
    assert len(meetings._open) <= 16
    assert meetings.at(0) is not first
