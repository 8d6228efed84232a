"""The term, the vote and the log of an agent, whatever comes at the same time, late or twice."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import get_args

from kungfu.runtime.agent.consensus.state import (
    ConsensusState,
    JobSnapshot,
    RequestLogEncoder,
    parse_request_log,
    parse_snapshot,
    serialize_snapshot,
)
from kungfu.runtime.core import request
from kungfu.runtime.core.cluster.cluster import Cluster, JobLimits
from kungfu.runtime.core.requests import request_log
from kungfu.runtime.core.requests.profiling import Goal, Point, Survey
from kungfu.runtime.core.size_limits import Hold, SizeLimits
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.settings import Deadlines
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


def test_an_agent_votes_once_in_a_term() -> None:
    consensus = ConsensusState(1)
    assert consensus.append(message(1, version=1)) == ""
    consensus.lose_leader()
    vote = pb.VoteRequest(job="job", term=2, host=2, binding=True)
    for _ in range(2):  # asked again, because the answer was lost
        assert consensus.answer_vote(vote).granted
    vote.host = 0
    assert not consensus.answer_vote(vote).granted
    assert consensus.append(message(2)).startswith("this host follows another")


def test_an_agent_that_ends_has_no_vote_and_keeps_nobody_from_electing() -> None:
    """It may end for a while: its peers have time to end too."""
    consensus = ConsensusState(1)
    assert consensus.append(message(1, version=1)) == ""
    pre_vote = pb.VoteRequest(job="job", host=2)
    assert consensus.answer_vote(pre_vote).hears_leader
    consensus.close()
    assert consensus.answer_vote(pre_vote) == pb.VoteReply()


def test_a_message_of_another_job_is_refused() -> None:
    consensus, other = ConsensusState(1), message(2)
    assert consensus.append(message(1)) == ""
    other.job = "other"
    assert consensus.append(other).startswith("this host is in another job")
    assert consensus.append(message(2)) == ""


def test_an_agent_whose_main_thread_hangs_has_no_vote() -> None:
    now = [0.0]
    consensus = ConsensusState(1, clock=lambda: now[0], patience_s=5.0)
    assert consensus.append(message(1, version=1)) == ""
    consensus.lose_leader()
    with consensus.waiting():
        now[0] = 100.0
        assert consensus.answer_vote(pb.VoteRequest(job="job", host=2)) != pb.VoteReply(), "it waits for an event"
    now[0] = 104.0
    vote = pb.VoteRequest(job="job", term=2, host=2, binding=True)
    assert consensus.answer_vote(vote).granted
    now[0] = 106.0
    assert consensus.hangs
    assert consensus.answer_vote(vote) == pb.VoteReply()


def test_an_older_state_gives_no_host_up() -> None:
    """An agent with an older state gives no host up, and votes for one that was taken in meanwhile."""
    consensus = ConsensusState(2)
    given_up = state(0, 1, 2, hosts=4, gone=frozenset({3}))
    first = pb.ReplicateRequest(job="job", term=1, number=1, version=4, state=given_up)
    assert consensus.append(first) == ""
    consensus.lose_leader()
    asked = pb.VoteRequest(job="job", term=2, host=3, binding=True, log_term=1, log_version=3)
    assert consensus.answer_vote(asked).fenced
    asked.log_version = 5
    assert consensus.answer_vote(asked).granted


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


def test_a_late_message_to_the_agent_before_it_is_no_message_of_its_leader() -> None:
    """Its number is higher: after it an agent would acknowledge, as late copies, states that it never held."""
    consensus = ConsensusState(1, incarnation="b")
    first, late = message(1, version=1), message(7)
    first.incarnation, late.incarnation = "b", "a"
    assert consensus.append(first) == ""
    assert consensus.append(late) == "the agent of this host has begun anew"


# ---- the state of the job ------------------------------------------------------------------------------------------


def with_request(log: request_log.RequestLog, name: str) -> request_log.RequestLog:
    asked, answer = request.Asked(request.Resize(9), id=name), request_log.Answer("refused", "a size of 9", 1)
    return request_log.with_entry(log, request_log.LoggedRequest(asked, answer, answer, 0.0, 1.0))


def test_a_snapshot_comes_back_as_it_was() -> None:
    snapshot = JobSnapshot(Cluster(JobLimits(Deadlines())), pids={3: 4711})
    assert parse_snapshot(serialize_snapshot(snapshot)) == snapshot


def test_an_id_of_a_request_that_ended_long_ago_takes_16_bytes_at_most() -> None:
    def is_refused(log: request_log.RequestLog, name: str) -> bool:
        return request_log.refusal_of_id(log, request.Asked(request.Resize(9), id=name)) is not None

    log = request_log.RequestLog()
    for number in range(request_log.REMEMBERED + 1):
        log = with_request(log, str(number))
    full = replace(log, forgotten=log.forgotten * request_log.MOST_FORGOTTEN)
    assert is_refused(full, "0")
    assert is_refused(full, "new"), "it takes no others"
    assert not is_refused(log, "new")
    assert parse_request_log(RequestLogEncoder().encode(full)) == full
    remembered, all_bytes = (len(RequestLogEncoder().encode(one)) for one in (log, full))
    assert (all_bytes - remembered) / request_log.MOST_FORGOTTEN < 16 < remembered / request_log.REMEMBERED / 10


def test_every_kind_of_request_comes_back_as_it_was() -> None:
    point = Point(2, 5, 320, 1.5)
    survey = Survey((Goal(2), Goal(1, 64)), Goal(4, 32), 5, current=point, measured=(point,))
    kinds = [
        request.Resize(3, keep="local_batch_size", max_global_batch=96, hold_s=math.inf),
        request.Resize(3, batch=request.SetBatch(64.0), rate=request.SetRate(0.1, over=4.0)),
        request.Leave((3, 4), when="replaced", size=2, host=1), request.ScaleOut(2), request.Migrate(1, "b"),
        request.Profile(1, 4, 5), request.Profile(1, 4, 5, batches=(8, 64)),
        request.SetBatch(96.5), request.SetRate(0.1, over=4.0, unit="samples"),
        request.SaveCheckpoint(), request.StopTraining(), request.Retry(),
        request.SetLimits(maximum=4), request.Release(), request.SetNumber("momentum", 0.95),
        request.SetAverageInterval(16.0),
    ]  # fmt: skip
    assert {type(one) for one in kinds} == set(get_args(request.Request))
    sizes = SizeLimits(2, hold=Hold(3, 1700000000.5, 12.25), revision=7)
    log, answer = request_log.RequestLog(under_way="3", sizes=sizes), request_log.Answer("accepted", points=(point,))
    for number, what in enumerate(kinds):
        asked = request.Asked(what, "scale", 7, {"gns": math.inf}, won=("a",), id=str(number), if_view=number)
        entry = request_log.LoggedRequest(asked, answer, answer, 0.5, 1.5, external=asked, survey=survey)
        log = request_log.with_entry(log, entry)
    assert parse_request_log(RequestLogEncoder().encode(log)) == log


def test_a_log_that_has_not_changed_is_not_encoded_again() -> None:
    encoder, log = RequestLogEncoder(), with_request(request_log.RequestLog(), "1")
    assert encoder.encode(log) is encoder.encode(log)
    assert parse_request_log(encoder.encode(with_request(log, "2"))) == with_request(log, "2")
