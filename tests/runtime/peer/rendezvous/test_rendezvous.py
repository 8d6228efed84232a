"""RendezvousTable: who came, who is missing, and one result for all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.peer.rendezvous.rendezvous import Rendezvous, RendezvousTable


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_everyone_gets_the_result_that_the_coordinator_concludes_with() -> None:
    meeting: Rendezvous[str, str] = Rendezvous()

    def follow(rank: int) -> str | None:
        meeting.arrive(rank, f"arrival {rank}")
        return meeting.result(deadline_s=60.0)

    with ThreadPoolExecutor(2) as threads:
        followers = [threads.submit(follow, rank) for rank in (1, 2)]
        meeting.arrive(0, "arrival 0")
        assert meeting.everyone(3, deadline_s=60.0, what="x") == {rank: f"arrival {rank}" for rank in range(3)}
        meeting.conclude("go on")
        assert [follower.result(180.0) for follower in followers] == ["go on", "go on"]


def test_a_second_arrival_of_a_rank_replaces_the_first_and_a_stranger_counts_not() -> None:
    meeting: Rendezvous[str, str] = Rendezvous()
    meeting.arrive(0, "old")
    meeting.arrive(0, "new")
    meeting.arrive(7, "stranger")
    with pytest.raises(DeadlineExceeded, match=r"for rank 1$"):
        meeting.everyone(2, deadline_s=0.01, what="barrier 4")
    meeting.arrive(1, "there")
    assert meeting.everyone(2, deadline_s=0.0, what="barrier 4") == {0: "new", 1: "there"}


def test_the_deadline_names_the_wait_its_seconds_and_exactly_who_is_missing() -> None:
    meeting: Rendezvous[str, str] = Rendezvous()
    meeting.arrive(2, "here")
    with pytest.raises(DeadlineExceeded, match=r"^waited 0\.1 s at barrier 4 of view 2 for rank 0, rank 1, rank 3$"):
        meeting.everyone(4, deadline_s=0.1, what="barrier 4 of view 2")


def test_a_key_is_one_meeting_for_all_who_speak_of_it() -> None:
    meetings: RendezvousTable[str, str] = RendezvousTable(Clock())
    meetings.at((1, 0)).arrive(1, "early")
    assert meetings.at((1, 0)) is meetings.at((1, 0))
    assert meetings.at((1, 1)) is not meetings.at((1, 0))


def test_old_meetings_are_dropped_but_never_the_one_that_is_asked_for() -> None:
    clock = Clock()
    meetings: RendezvousTable[str, str] = RendezvousTable(clock)
    old, other = meetings.at("old"), meetings.at("other")
    clock.now = 601.0
    assert meetings.at("old") is old
    assert meetings.at("other") is not other


def test_a_barrier_in_every_step_keeps_only_the_last_meetings() -> None:
    meetings: RendezvousTable[str, str] = RendezvousTable(Clock())
    first, last = meetings.at(0), None
    for number in range(1, 1000):
        last = meetings.at(number)
    assert meetings.at(999) is last
    assert meetings.at(990) is meetings.at(990), "who is late still finds the others"
    assert len(meetings._open) <= 16
    assert meetings.at(0) is not first
