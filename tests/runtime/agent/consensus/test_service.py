"""What an agent answers other agents."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from kungfu.runtime.agent.consensus.allegiance import Allegiance
from kungfu.runtime.agent.consensus.service import HeadLost, HostService
from kungfu.runtime.agent.record.journal import Journal
from kungfu.runtime.agent.record.recorder import Recorder
from kungfu.runtime.agent.service import AgentService
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.settings import Deadlines, Limits, Settings
from tests.runtime.agent.consensus.test_leader import Quiet

SETTINGS = Settings("job", -1, "127.0.0.1", "ab" * 16, "local", Limits(1, 3), Deadlines(heartbeat_s=5.0))


def follower(put: Any, noted: Any = lambda: True) -> tuple[Allegiance, HostService]:
    """The agent of host 1, which has heard of a head on host 0 whose port refuses by now."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = int(once.getsockname()[1])
    hosts = {number: Host("127.0.0.1", 1, port) for number in range(3)}
    allegiance = Allegiance(1)
    assert allegiance.hear(pb.Orders(job="job", term=1, head=0, now=7.0, number=1)) == ""
    return allegiance, HostService(allegiance, hosts, SETTINGS, put=put, started=list, noted=noted)


def test_an_agent_that_learns_by_the_question_of_another_one_that_the_head_is_lost_sees_to_it_once() -> None:
    seen: list[object] = []
    allegiance, service = follower(seen.append)
    for _ in range(2):
        service.Stand(pb.Ballot(job="job", host=2), None)
    assert allegiance.head is None
    assert [type(event) for event in seen] == [HeadLost]


class Call:
    """What a call knows of itself."""

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise RefusedError(code)


class RefusedError(Exception):
    """The call was not answered."""


def test_what_this_agent_did_not_see_to_before_it_ended_is_not_answered_but_told_to_the_next_one(
    tmp_path: Path,
) -> None:
    put: list[object] = []
    allegiance, service = follower(put.append, lambda: False)
    assert allegiance.lead("job", 2)
    with pytest.raises(RefusedError, match="UNAVAILABLE"):
        service.Happened(pb.Happening(host=2, what="ended", peer=5), Call())
    journal = Journal(tmp_path)
    peers = AgentService(put.append, Recorder(journal, Quiet()), noted=lambda: False)
    for call in (
        lambda: peers.Lost(pb.Loss(peer=5, version=1, step=40, holds=True, error="lost rank 0"), Call()),
        lambda: peers.Finish(pb.Finished(peer=5, summary="{}"), Call()),
        lambda: peers.Notify(pb.Notice(peer=5), Call()),
        lambda: peers.Ready(pb.Hello(peer=pb.PeerInfo(id=5, address="127.0.0.1:1")), Call()),
    ):
        with pytest.raises(RefusedError, match="UNAVAILABLE"):
            call()
    journal.close()
    assert len(put) == 5


def test_a_head_is_lost_once_until_another_one_is_heard() -> None:
    allegiance = Allegiance(1)
    assert not allegiance.lose(), "there was none"
    allegiance.hear(pb.Orders(job="job", term=1, head=0, number=1))
    assert [allegiance.lose(), allegiance.lose()] == [True, False]
    allegiance.hear(pb.Orders(job="job", term=2, head=2, number=1))
    assert allegiance.lose()
    allegiance.lead("job", 3)
    assert not allegiance.lose(), "it leads itself"


def test_as_long_as_a_job_is_known_nobody_founds_another_one() -> None:
    allegiance, service = follower(lambda event: None)
    again = pb.Entrance(host=pb.HostInfo(number=0, pid=1))
    assert service.Enter(again, None).later, "the head itself has begun anew, and that it was lost is not noticed yet"
    allegiance.lose()
    assert service.Enter(again, None).later
    fresh = HostService(Allegiance(1), {}, SETTINGS, put=[].append, started=list, noted=lambda: True)
    assert not fresh.Enter(again, None).later
