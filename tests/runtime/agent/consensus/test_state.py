"""The term, the vote and the log of an agent, whatever comes at the same time, late or twice."""

from __future__ import annotations

import threading

from kungfu.runtime.agent.consensus.state import ConsensusState
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.agents import state


def message(number: int, *, term: int = 1, leader: int = 0, version: int = 0) -> pb.ReplicateRequest:
    text = state(0, 1, 2, hosts=3, version=version) if version else b""
    return pb.ReplicateRequest(job="job", term=term, leader=leader, number=number, version=version, state=text)


def test_an_agent_that_has_voted_in_a_later_term_does_not_lead_an_earlier_one() -> None:
    consensus = ConsensusState(1)
    consensus.append(message(1))
    consensus.lose_leader()
    assert consensus.grant_vote(2, 1)
    assert consensus.grant_vote(3, 2), "host 2 asked while this one counted its votes"
    assert not consensus.become_leader("job", 2)
    assert not consensus.is_leader
    assert consensus.append(message(1, term=3, leader=2)) == ""
    assert not consensus.become_leader("job", 3), "a follower of the leader of a term is not its leader"


class Meanwhile(ConsensusState):
    """The leader sends a newer state at the moment at which a vote is asked for."""

    def grant_vote(self, term: int, host: int) -> bool:
        sent = threading.Thread(target=self.append, args=(message(2, version=2),), daemon=True)
        sent.start()
        sent.join(timeout=0.3)
        return super().grant_vote(term, host)


def test_a_vote_tells_of_the_state_that_is_held_when_the_vote_is_given() -> None:
    consensus = Meanwhile(1)
    assert consensus.append(message(1, version=1)) == ""
    consensus.lose_leader()
    vote = consensus.answer_vote(pb.VoteRequest(job="job", host=2, term=2, binding=True))
    assert vote.granted
    assert vote.version == consensus.log.version


def test_a_message_that_arrives_late_a_second_time_changes_nothing() -> None:
    consensus = ConsensusState(1)
    for number in (1, 2):
        assert consensus.append(message(number, version=number)) == ""
        assert consensus.is_new(message(number))
    assert consensus.append(message(1, version=1)) == ""
    assert not consensus.is_new(message(1))
    assert consensus.log.version == 2
    assert [version for version, _ in consensus.log.uncommitted] == [1, 2]


def test_an_overtaken_message_says_nothing_of_the_leader() -> None:
    """A message that was overtaken on another connection says nothing of the leader."""
    now = [100.0]
    consensus = ConsensusState(1, clock=lambda: now[0])
    for number in (1, 2):
        assert consensus.append(message(number)) == ""
        assert consensus.is_new(message(number))
    now[0] = 107.0
    consensus.lose_leader()
    assert consensus.append(message(1)) == ""
    assert (consensus.leader, consensus.silence_s()) == (None, 7.0)


def test_the_numbers_of_the_leader_before_do_not_hide_the_messages_of_the_next_one() -> None:
    consensus = ConsensusState(1)
    consensus.follow("job", 0)
    late, first = message(9), message(1, term=2, leader=2)
    assert consensus.append(late) == ""
    assert consensus.append(first) == "", "before anybody asked whether the one before was new"
    assert not consensus.is_new(late)
    assert consensus.is_new(first)


def test_an_old_leaders_admission_reply_that_comes_late_is_none() -> None:
    consensus = ConsensusState(1)
    assert consensus.append(message(1, term=3, leader=2)) == ""
    consensus.follow("job", 0, term=1)
    assert (consensus.leader, consensus.term) == (2, 3)
    fresh = ConsensusState(1)
    fresh.follow("job", 2, term=3)
    assert fresh.append(message(1, term=1)).startswith("this host follows another leader: of term 3")
    assert fresh.leader == 2


def test_an_agent_that_has_begun_anew_refuses_messages_to_the_one_before_it() -> None:
    consensus = ConsensusState(1)
    assert consensus.append(message(7)) == "the agent of this host has begun anew"
    assert (consensus.job, consensus.leader) == ("", None)
    assert consensus.append(message(1)) == "", "the first ones may be faster than the reply"
    consensus.follow("job", 2)
    assert consensus.leader == 0
