"""What an agent does after a pre-vote, row by row of the table."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from kungfu.runtime.agent.consensus.election_round import Action, ElectionRound, Stand, next_action
from kungfu.runtime.agent.consensus.host_list import founded
from kungfu.runtime.agent.consensus.state import FollowerLog, parse_snapshot, serialize_snapshot
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.agents import state

# The job of five hosts with one peer each, of which host 0 has led.
TEXT = state(0, 1, 2, 3, 4, hosts=5)
HELD = FollowerLog().with_state(1, 4, TEXT)


def vote(has_quorum: bool | None = False, *, version: int = 4, text: bytes = TEXT, **given: Any) -> pb.VoteReply:
    return pb.VoteReply(term=1, version=version, state=text, voted_term=1, has_quorum=has_quorum, **given)


def action(host: int, votes: dict[int, pb.VoteReply], **given: Any) -> Action:
    times = {"now": 100.0, "began": 100.0, "quorate_at": 100.0, "voted_term": 1, "voted_at": -math.inf, **given}
    return next_action(ElectionRound(host, HELD, votes, **times, heartbeat_s=5.0))


HEARS, GIVEN_UP = vote(hears_leader=True), vote(fenced=True)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ({3: vote(), 4: vote()}, Stand(2, frozenset({3, 4}))),
        ({3: vote()}, "wait"),
        ({1: vote(), 3: vote(), 4: vote()}, Stand(2, frozenset({1, 3, 4}))),  # host 1 hears no quorum
        ({1: vote(True), 3: vote(), 4: vote()}, "wait"),
        ({1: vote(None), 3: vote(), 4: vote()}, "wait"),
        ({3: vote(True), 4: vote(None)}, Stand(2, frozenset({3, 4}))),  # they are higher
        ({1: HEARS, 3: vote(), 4: vote()}, "wait"),
        ({1: vote(), 3: HEARS, 4: HEARS}, "wait"),
        ({1: GIVEN_UP, 3: vote(), 4: vote()}, "fenced"),
        ({3: pb.VoteReply(term=1, version=4, state=TEXT, voted_term=6, has_quorum=True), 4: vote()},
         Stand(7, frozenset({3, 4}))),
    ],
)  # fmt: skip
def test_the_lowest_of_the_hosts_with_a_quorum_of_pre_votes_stands(
    votes: dict[int, pb.VoteReply], expected: Action
) -> None:
    assert action(2, votes) == expected


def test_a_lower_host_has_a_heartbeat_to_count_its_pre_votes() -> None:
    votes = {1: vote(None), 3: vote(), 4: vote()}
    assert action(2, votes, now=105.0) == "wait"
    assert action(2, votes, now=105.1) == Stand(2, frozenset({1, 3, 4}))


def test_a_host_that_has_voted_for_another_one_waits_and_stands_in_a_later_term() -> None:
    votes = {3: vote(), 4: vote()}
    assert action(2, votes, voted_term=7, voted_at=99.0, now=104.0) == "wait"
    assert action(2, votes, voted_term=7, voted_at=99.0, now=104.1) == Stand(8, frozenset({3, 4}))


def test_pre_votes_are_counted_under_the_newest_log() -> None:
    """Pre-votes are counted as the votes will be: with another log this host might stand forever, and never win."""
    moved = state(3, 3, 3, 4, hosts=5, version=2, first=5)
    newer = vote(version=5, text=moved)
    assert action(1, {2: vote(), 4: newer}) == "wait"
    assert action(1, {3: vote(), 4: newer}) == Stand(2, frozenset({3, 4}))


def test_a_host_whose_removal_is_not_committed_is_a_member_still() -> None:
    removed = vote(version=5, text=state(0, 1, 2, 3, 4, hosts=5, gone=frozenset({1})))
    assert action(2, {1: vote(), 3: removed}) == Stand(2, frozenset({1, 3}))
    assert action(2, {1: vote(True), 3: removed}) == "wait", "it is lower"
    assert action(1, {2: vote(), 3: removed}) == Stand(2, frozenset({2, 3}))


def test_a_host_off_the_list_does_not_lead_and_no_view_that_needs_it_counts() -> None:
    """Without this the host and another one, which does not ask for its vote, split each election."""
    moved = parse_snapshot(state(2, 3, 4, hosts=5, version=2, first=5, gone=frozenset({1})))
    listed = founded(Host(f"host-{number}", 1, 1) for number in range(5))
    kept, off = (serialize_snapshot(replace(moved, hosts=one)) for one in (listed, listed.without([1])))
    assert action(2, {3: vote(version=5, text=kept)}) == "wait", "two of five may be too few"
    assert action(2, {3: vote(version=5, text=off)}) == Stand(2, frozenset({3}))
    assert action(1, {2: vote(), 3: vote(version=5, text=off), 4: vote()}) == "wait"


def test_a_newer_log_that_no_quorum_can_hold_keeps_nobody_from_an_election() -> None:
    """Host 4 holds a view of which most peers would have started on the host that is lost."""
    newer = vote(version=5, text=state(0, 0, 0, 1, hosts=5, version=2, first=5))
    assert action(1, {2: vote(), 3: vote(), 4: newer}) == Stand(2, frozenset({2, 3, 4}))
    assert action(1, {2: vote(), 4: newer}) == "wait", "without host 4 they are two of five"


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"now": 110.0}, "wait"), ({"now": 110.1}, "no quorum"),
        ({"now": 114.0, "voted_at": 104.0}, "wait"), ({"now": 114.1, "voted_at": 104.0}, "no quorum"),
        ({"now": 130.1, "voted_at": 130.0}, "no quorum"),  # for whom it votes all the time does not lead
        ({"now": 190.0, "quorate_at": 180.0}, "wait"), ({"now": 190.1, "quorate_at": 180.0}, "no quorum"),
    ],
)  # fmt: skip
def test_who_hears_no_quorum_stops_after_two_heartbeats(times: dict[str, float], expected: Action) -> None:
    assert action(2, {3: vote()}, **times) == expected


def test_who_reaches_a_quorum_waits_until_others_lose_the_leader_or_one_leads() -> None:
    hearing, voting = {1: HEARS, 3: HEARS}, {1: vote(True), 3: vote()}
    assert [action(2, votes, now=120.0) for votes in (hearing, voting)] == ["wait", "wait"]
    assert [action(2, votes, now=120.1) for votes in (hearing, voting)] == ["no quorum", "wait"]
