"""Which agent is elected when the leader is lost, and which stops."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from kungfu.runtime.agent.consensus.consensus_service import HostService
from kungfu.runtime.agent.consensus.election import Elected, NoQuorum, elect
from kungfu.runtime.agent.consensus.state import ConsensusState, RequestLogEncoder, parse_snapshot, serialize_snapshot
from kungfu.runtime.core.request import Asked, StopTraining
from kungfu.runtime.core.requests.request_log import Answer, LoggedRequest, RequestLog, with_entry
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.settings import Settings
from tests.runtime.agent.consensus.agents import HASTY, SETTINGS, Agent, agents, follow, left, state

HOW = "host 127.0.0.1, which led the job: its agent has ended"


def stand(agent: Agent, *others: Agent, settings: Settings = HASTY) -> Elected | NoQuorum | None:
    """The agent stands for election, once it and these ``others`` have lost the leader."""
    for one in (agent, *others):
        one.consensus.lose_leader()
    return elect(agent.consensus, settings, how=HOW)


def elected(agent: Agent, *others: Agent) -> Elected:
    came = stand(agent, *others)
    assert isinstance(came, Elected)
    return came


def refused(agent: Agent, hosts: list[Host], *others: Agent) -> str:
    """The reason why the agent does not lead."""
    came = stand(agent, *others)
    assert isinstance(came, NoQuorum)
    return came.why


def test_the_first_of_those_that_are_left_takes_over_and_the_others_follow_it() -> None:
    with left(state(0, 1, 2, hosts=3)) as (_, (first, second)):
        found: dict[int, Any] = {}

        def led() -> None:
            found[1] = stand(first, settings=SETTINGS)
            assert second.consensus.append(pb.ReplicateRequest(job="job", term=2, leader=1, number=1)) == ""

        leading = threading.Thread(target=led)
        leading.start()
        found[2] = stand(second, settings=SETTINGS)
        leading.join()
        won = found[1]
        assert isinstance(won, Elected)
        assert (won.voters, won.snapshot.cluster.view and won.snapshot.cluster.view.size) == ({1, 2}, 3)
        assert first.consensus.is_leader
        assert (found[2], second.consensus.leader) == (None, 1), "it waits for the messages of the first"


def test_two_halves_go_on_only_with_rank_0() -> None:
    with left(state(1, 0, hosts=2), hosts=2) as (hosts, (other,)):
        assert elected(other).voters == {1}
    with left(state(0, 1, hosts=2), hosts=2) as (hosts, (other,)):
        assert "would go on with 1 of the 2 peers of view 1, which is no majority" in refused(other, hosts)


def test_before_the_first_view_nobody_takes_over() -> None:
    snapshot = parse_snapshot(state(1, hosts=2))
    before = replace(snapshot, cluster=replace(snapshot.cluster, view=None))
    with left(serialize_snapshot(before), hosts=2) as (hosts, (other,)):
        assert "before the first view" in refused(other, hosts)


def test_a_new_leader_knows_the_requests_of_the_newest_state_among_its_voters() -> None:
    request, answer, text = Asked(StopTraining(), id="r"), Answer("refused", "no", 1), state(0, 1, 2, hosts=3)
    log = with_entry(RequestLog(), LoggedRequest(request, answer, answer, 0.0, 1.0))
    with left(text) as (_, (one, two)):
        follow(one, text, requests=RequestLogEncoder().encode(RequestLog()), version=2)
        follow(two, text, requests=RequestLogEncoder().encode(log), version=2)
        follow(two, text, version=3)
        assert elected(one, two).request_log == log


def test_as_long_as_another_agent_hears_the_leader_it_is_not_lost() -> None:
    with agents(3) as (hosts, (_, deaf, other)):
        for agent in (deaf, other):
            follow(agent, state(0, 1, 2, hosts=3))
        assert "127.0.0.3 still hears it" in refused(deaf, hosts)
        assert other.consensus.leader == 0


def test_an_agent_that_was_given_up_stops() -> None:
    with left(state(0, 1, 2, hosts=3)) as (hosts, (late, other)):
        follow(other, state(0, 2, hosts=3, gone=frozenset({1})), version=2, committed=2)
        assert "gave this one up" in refused(late, hosts)


def test_an_agent_that_was_given_up_by_a_leader_that_nobody_confirmed_stays() -> None:
    """The leader told only one host that it had lost the other, and was lost itself: two of three go on."""
    without = state(0, 1, 2, hosts=3, gone=frozenset({1}))
    for stands in (1, 2):
        with left(state(0, 1, 2, hosts=3)) as (_, (given_up, told)):
            follow(told, without, version=2)
            assert given_up.consensus.answer_vote(pb.VoteRequest(job="job", host=2)).hears_leader
            one, other = (given_up, told) if stands == 1 else (told, given_up)
            came = elected(one, other)
            assert (came.reached, came.voters, came.version) == ({1, 2}, {1, 2}, 2)
            assert came.snapshot.cluster.hosts.known == {0, 2}, "host 1 joins again"


@pytest.mark.parametrize(("held_by", "leads"), [(1, False), (3, True)])
def test_who_was_given_up_and_has_woken_up_is_not_counted_on(held_by: int, leads: bool) -> None:
    with left(state(0, 1, 2, hosts=4), hosts=4) as (hosts, (late, *others)):
        for agent in others:
            follow(agent, state(0, 2, held_by, hosts=4, gone=frozenset({1})), version=2, committed=2)
        if leads:
            assert elected(others[0], late, others[1]).voters == {2, 3}
        else:
            assert "would go on with 1 of the 3 peers" in refused(others[0], hosts, late, others[1])


def test_the_leader_goes_on_from_the_newest_log_of_its_voters() -> None:
    with left(state(0, 1, 2, hosts=3)) as (_, (behind, ahead)):
        follow(ahead, state(1, 2, hosts=3, version=2), version=2)
        came = elected(behind, ahead)
        assert (came.version, came.term) == (2, 2)
        assert came.snapshot.cluster.view is not None
        assert came.snapshot.cluster.view.version == 2


def test_a_host_that_was_lost_before_is_not_waited_for() -> None:
    over, answered = threading.Event(), list[int]()

    class Frozen(HostService):
        def RequestVote(self, request: pb.VoteRequest, context: Any) -> pb.VoteReply:  # noqa: N802 - gRPC's name
            over.wait(50.0)
            answered.append(request.host)
            return pb.VoteReply()

    without = state(0, 1, 2, hosts=4, gone=frozenset({3}))
    with left(without, hosts=4, serving={3: Frozen}) as (_, (one, two, _)):
        try:
            assert elected(one, two).reached == {1, 2}
            assert answered == []
        finally:
            over.set()


def test_until_a_view_is_committed_a_majority_of_both_is_needed() -> None:
    with left(state(0, 0, 0, 1, hosts=3)) as (hosts, (one, two)):
        for agent in (one, two):
            follow(agent, state(1, 2, hosts=3, version=2, first=4), version=2, committed=1)
        assert refused(one, hosts, two), "of the committed view most peers are on the lost host, and may go on there"
        for agent in (one, two):
            committed = pb.ReplicateRequest(job="job", term=99, leader=0, number=3, committed=2)
            assert agent.consensus.append(committed) == ""
        assert elected(one, two)


class Parted(HostService):
    """Hears host 1 on host 2 only, and host 1 hears host 2 only."""

    def RequestVote(self, request: pb.VoteRequest, context: Any) -> pb.VoteReply:  # noqa: N802 - gRPC's name
        pair = {request.host, self._consensus.host}
        return super().RequestVote(request, context) if 1 not in pair or 2 in pair else pb.VoteReply()


def test_a_connected_majority_elects_though_a_lower_host_hears_no_majority() -> None:
    """Host 1 is the lowest that host 2 hears, and hears no majority itself."""
    with left(state(0, 1, 2, 3, 4, hosts=5), hosts=5, serving=dict.fromkeys(range(1, 5), Parted)) as (_, others):
        results: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        over = threading.Event()

        def stands(agent: Agent) -> None:
            agent.consensus.lose_leader()
            found = elect(agent.consensus, SETTINGS, how=HOW, is_over=over.is_set)
            results.put((agent.consensus.host, found))

        threads = [threading.Thread(target=stands, args=(agent,)) for agent in others]
        for thread in threads:
            thread.start()
        host, won = results.get(timeout=180.0)
        over.set()
        for thread in threads:
            thread.join()
        assert isinstance(won, Elected), won
        assert (host, won.voters) == (2, {1, 2, 3, 4}), "who hears the one that leads votes for it, and stays"


class Rival(HostService):
    """Votes for its own host at the moment at which a vote is asked for."""

    def RequestVote(self, request: pb.VoteRequest, context: Any) -> pb.VoteReply:  # noqa: N802 - gRPC's name
        assert not request.binding or self._consensus.grant_vote(request.term, self._consensus.host)
        return super().RequestVote(request, context)


def test_a_host_that_voted_for_itself_is_not_lost_for_the_one_that_leads() -> None:
    with left(state(1, 2, 3, hosts=4), hosts=4, serving={2: Rival}) as (_, (one, two, three)):
        won = elected(one, two, three)
        assert (won.voters, won.reached) == ({1, 3}, {1, 2, 3})
        assert two.consensus.append(pb.ReplicateRequest(job="job", term=won.term, leader=1, number=1)) == ""


class Meanwhile(HostService):
    """Before this agent answers the one that asks, a message of a new leader has reached that one."""

    asking: Agent

    def RequestVote(self, request: pb.VoteRequest, context: Any) -> pb.VoteReply:  # noqa: N802 - gRPC's name
        vote = super().RequestVote(request, context)
        assert self.asking.consensus.append(pb.ReplicateRequest(job="job", term=2, leader=2, number=1)) == ""
        return vote


@pytest.mark.parametrize("gone", [frozenset[int](), frozenset({1})], ids=["known", "given up"])
def test_an_agent_that_follows_a_new_leader_by_the_time_does_not_stop(gone: frozenset[int]) -> None:
    hasty = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, heartbeat_s=1e-3))
    with left(state(0, 1, 2, hosts=3), serving={2: Meanwhile}) as (_, (asking, other)):
        Meanwhile.asking = asking
        follow(other, state(0, 1, 2, hosts=3, gone=gone), version=2)
        assert stand(asking, other, settings=hasty) is None
        assert asking.consensus.leader == 2


def test_an_agent_that_has_voted_for_another_one_waits_for_its_messages() -> None:
    now = [0.0]
    with agents(2) as (hosts, (leader, other)):
        other.consensus = consensus = ConsensusState(1, dict(enumerate(hosts)), clock=lambda: now[0])
        follow(other, state(1, 2, hosts=3))
        leader.stop()
        consensus.lose_leader()
        began = time.monotonic()
        now[0] = began + 0.5  # so much after it has begun to look for another leader
        assert consensus.grant_vote(7, 2)
        found = elect(consensus, HASTY, how=HOW)  # its own vote is a quorum: it holds half of the peers, and rank 0
        assert (isinstance(found, Elected) and found.term) == 8
        assert time.monotonic() - began > 0.5 + 0.2
