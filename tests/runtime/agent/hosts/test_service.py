"""What an agent answers other agents."""

from __future__ import annotations

import socket
from typing import Any

from kungfu.runtime.agent.hosts.allegiance import Allegiance
from kungfu.runtime.agent.hosts.service import HeadLost, HostService
from kungfu.runtime.hosts import Host
from kungfu.runtime.settings import Deadlines, Limits, Settings
from kungfu.runtime.wire import messages_pb2 as pb

SETTINGS = Settings("job", -1, "127.0.0.1", "ab" * 16, "local", Limits(1, 3), Deadlines(heartbeat_s=5.0))


def follower(put: Any) -> tuple[Allegiance, HostService]:
    """The agent of host 1, which has heard of a head on host 0 whose port refuses by now."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = int(once.getsockname()[1])
    hosts = {number: Host("127.0.0.1", 1, port) for number in range(3)}
    allegiance = Allegiance(1)
    assert allegiance.hear(pb.Orders(job="job", term=1, head=0, now=7.0, number=1)) == ""
    return allegiance, HostService(allegiance, hosts, SETTINGS, put=put, started=list)


def test_an_agent_that_learns_by_the_question_of_another_one_that_the_head_is_lost_sees_to_it_once() -> None:
    seen: list[object] = []
    allegiance, service = follower(seen.append)
    for _ in range(2):
        service.Stand(pb.Ballot(job="job", host=2), None)
    assert allegiance.head is None
    assert [type(event) for event in seen] == [HeadLost]


def test_a_head_is_lost_once_until_another_one_is_heard() -> None:
    allegiance = Allegiance(1)
    assert not allegiance.lose(), "there was none"
    allegiance.hear(pb.Orders(job="job", term=1, head=0, number=1))
    assert [allegiance.lose(), allegiance.lose()] == [True, False]
    allegiance.hear(pb.Orders(job="job", term=2, head=2, number=1))
    assert allegiance.lose()
    allegiance.lead("job", 3)
    assert not allegiance.lose(), "it leads itself"
