"""What an agent answers other agents and peers, and calls that it passes on to the leader."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kungfu.event_log.codec import pack_event
from kungfu.event_log.events import FinishedEvent
from kungfu.runtime.agent.agent_service import AgentService
from kungfu.runtime.agent.consensus.consensus_service import HostService, LeaderLost
from kungfu.runtime.agent.consensus.leader_proxy import LeaderClient, LeaderProxy
from kungfu.runtime.agent.consensus.replication import HEARTBEAT_EVERY_S, lost_after_s
from kungfu.runtime.agent.consensus.state import ConsensusState
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.agent.journal.recorder import HostRecorder
from kungfu.runtime.core.cluster.events import PeerNoticed
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import from_report
from kungfu.runtime.ipc.messages_pb2_grpc import AgentServiceStub
from tests.runtime.agent.consensus.agents import SETTINGS, free_port, state
from tests.runtime.agent.test_leader import Quiet
from tests.runtime.peer.test_peer_service import Call, RefusedError


def follower(put: Any, flushed: Any = lambda: True) -> tuple[ConsensusState, HostService]:
    """The agent of host 1, which has heard of a leader on host 0 whose port refuses by now."""
    consensus = ConsensusState(1, dict.fromkeys(range(3), Host("127.0.0.1", 1, free_port("127.0.0.1"))))
    assert consensus.append(pb.ReplicateRequest(job="job", term=1, leader=0, now=7.0, number=1)) == ""
    return consensus, HostService(consensus, SETTINGS, put=put, started=list, flushed=flushed)


def test_an_agent_that_learns_of_the_lost_leader_by_a_vote_request_acts_once() -> None:
    seen: list[object] = []
    consensus, service = follower(seen.append)
    for _ in range(2):
        service.RequestVote(pb.VoteRequest(job="job", host=2), None)
    assert consensus.leader is None
    assert [type(event) for event in seen] == [LeaderLost]


@pytest.mark.parametrize(("is_earlier", "hears"), [(0.01, False), (-0.01, True)])
def test_a_leader_is_lost_together_with_one_that_missed_the_same_messages(is_earlier: float, hears: bool) -> None:
    now = [0.0]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and says nothing
        leader = Host("127.0.0.1", 1, silent.getsockname()[1])
        consensus = ConsensusState(1, dict.fromkeys(range(3), leader), clock=lambda: now[0])
        held = pb.ReplicateRequest(job="job", term=1, leader=0, number=1, state=state(0, 1, 2, hosts=3), version=1)
        assert consensus.append(held) == ""
        service = HostService(consensus, SETTINGS, put=[].append, started=list, flushed=lambda: True)
        now[0] = lost_after_s(SETTINGS.deadlines) - HEARTBEAT_EVERY_S + is_earlier
        assert service.RequestVote(pb.VoteRequest(job="job", host=2), None).hears_leader is hears
    assert consensus.leader == (0 if hears else None)


def test_an_agent_that_ends_is_in_no_job_and_still_names_the_other_hosts() -> None:
    """A host that is started again would take the job that ends for that to join."""
    put: list[object] = []
    consensus, service = follower(put.append)
    asks = pb.HostAdmissionRequest(host=pb.HostInfo(number=2))
    lives = service.AdmitHost(asks, None)
    consensus.close()
    ends = service.AdmitHost(asks, None)
    assert (lives.job, lives.retry) == ("job", True)
    assert (ends.job, ends.retry, ends.hosts) == ("", False, lives.hosts)


def test_events_not_handled_before_the_end_are_reported_to_the_next_agent(tmp_path: Path) -> None:
    put: list[object] = []
    consensus, service = follower(put.append, lambda: False)
    assert consensus.become_leader("job", 2)
    with pytest.raises(RefusedError, match="UNAVAILABLE"):
        service.ReportHostEvent(pb.HostEvent(host=2, kind=pb.HOST_EVENT_KIND_ENDED, peer=5), Call())
    journal, finished = Journal(tmp_path), FinishedEvent(peer=5, leaving=False, steps=0, traces=0)
    peers = AgentService(put.append, HostRecorder(journal, Quiet()), flushed=lambda: False)
    for call in (
        lambda: peers.ReportEvent(from_report(PeerNoticed(5)), Call()),
        lambda: peers.ReportFinished(pb.TrainingFinished(event=pack_event(finished)), Call()),
    ):
        with pytest.raises(RefusedError, match="UNAVAILABLE"):
            call()
    journal.close()
    assert len(put) == 3


def test_an_unknown_event_of_another_host_is_refused() -> None:
    put: list[object] = []
    consensus, service = follower(put.append)
    assert consensus.become_leader("job", 2)
    newer: Any = 99
    for kind in (pb.HOST_EVENT_KIND_UNSPECIFIED, newer):
        with pytest.raises(RefusedError, match="INVALID_ARGUMENT"):
            service.ReportHostEvent(pb.HostEvent(host=2, kind=kind, peer=5), Call())
    assert put == []


def test_a_leader_is_lost_once_until_another_one_is_heard() -> None:
    consensus = ConsensusState(1)
    assert not consensus.lose_leader(), "there was none"
    consensus.append(pb.ReplicateRequest(job="job", term=1, leader=0, number=1))
    assert [consensus.lose_leader(), consensus.lose_leader()] == [True, False]
    consensus.append(pb.ReplicateRequest(job="job", term=2, leader=2, number=1))
    assert consensus.lose_leader()
    consensus.become_leader("job", 3)
    assert not consensus.lose_leader(), "it leads itself"


def test_as_long_as_a_job_is_known_nobody_founds_another_one() -> None:
    consensus, service = follower(lambda event: None)
    again = pb.HostAdmissionRequest(host=pb.HostInfo(number=0, pid=1))
    assert service.AdmitHost(again, None).retry, (
        "the leader itself has begun anew, and that it was lost is not noticed yet"
    )
    consensus.lose_leader()
    assert service.AdmitHost(again, None).retry
    fresh = HostService(ConsensusState(1), SETTINGS, put=[].append, started=list, flushed=lambda: True)
    assert not fresh.AdmitHost(again, None).retry


def test_a_leader_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun to handle the one request, and not the other one."""
    monkeypatch.setattr("kungfu.runtime.agent.consensus.consensus_service._REPLY_S", 0.05)
    queue: list[Any] = []

    def put(asked: Any) -> None:
        queue.append(asked)
        if len(queue) == 1:
            asked.reply.set_running_or_notify_cancel()

    consensus, service = follower(put)
    assert consensus.become_leader("job", 2)
    asks = pb.HostAdmissionRequest(host=pb.HostInfo(number=2))
    replies = [service.AdmitHost(asks, None) for _ in range(2)]
    assert [(reply.retry, reply.job, reply.refusal) for reply in replies] == [(True, "job", "")] * 2
    assert [asked.reply.cancelled() for asked in queue] == [False, True]


def test_a_call_waits_for_a_leader_no_longer_than_the_agent_runs() -> None:
    consensus = ConsensusState(1)
    front = LeaderProxy(object(), AgentServiceStub, LeaderClient(consensus, SETTINGS), consensus, deadline_s=300.0)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(front.ReportEvent, pb.PeerReport(), Call())
        consensus.close()
        with pytest.raises(RefusedError, match=r"^UNAVAILABLE: no host leads the job at the moment$"):
            answer.result(timeout=180.0)
