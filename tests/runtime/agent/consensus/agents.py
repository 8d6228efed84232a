"""Agents that only talk to each other, in this process: a consensus state each, served on a loopback address."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest

from kungfu.runtime.agent.consensus.consensus_service import HostService
from kungfu.runtime.agent.consensus.replication import Replicator
from kungfu.runtime.agent.consensus.state import ConsensusState, JobSnapshot, serialize_snapshot
from kungfu.runtime.core.cluster.cluster import Cluster, Hosts, JobLimits, Processes
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import add_HostServiceServicer_to_server
from kungfu.runtime.settings import Deadlines, Limits, Settings

# Nobody who is only slow is lost: a test in which a silence is to be noticed says how long that takes.
SETTINGS = Settings(
    "job", -1, "127.0.0.1", "ab" * 32, "local", Limits(1, 8), Deadlines(ready_s=180.0, wait_s=60.0, heartbeat_s=30.0)
)
# All that must be there for an election is there when it begins, so the first round decides.
HASTY = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, heartbeat_s=0.2))
_ANSWER_DEADLINES = (
    "kungfu.runtime.agent.consensus.election._VOTE_DEADLINE_S",
    "kungfu.runtime.agent.consensus.host_admission._REQUEST_DEADLINE_S",
    "kungfu.runtime.agent.consensus.consensus_service._REPLY_S",
)


@dataclass
class Agent:
    """One agent: its consensus state, and the events for its main thread."""

    consensus: ConsensusState
    server: rpc.Server
    heard: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)

    @property
    def held(self) -> JobSnapshot:
        """The state of the job that it holds."""
        assert self.consensus.log.snapshot is not None
        return self.consensus.log.snapshot

    def stop(self) -> None:
        """From now on nothing of it answers."""
        self.server.stop()


def state(
    *hosts_of_peers: int, hosts: int, version: int = 1, gone: frozenset[int] = frozenset(), first: int = 0
) -> bytes:
    """A job whose rank N is peer N + ``first``, on the host that is entry N; all ``hosts`` but those ``gone`` take
    peers."""
    of = dict(enumerate(hosts_of_peers, start=first))
    view = View(version, tuple(Peer(id_, f"127.0.0.{host + 1}:1") for id_, host in of.items()))
    places = Hosts({host: 4 for host in range(hosts) if host not in gone}, of=of)
    people = Processes(alive=frozenset(of), next_id=first + len(of))
    return serialize_snapshot(JobSnapshot(Cluster(JobLimits(SETTINGS.deadlines), view, processes=people, hosts=places)))


@contextmanager
def agents(
    count: int, serving: Mapping[int, type[HostService]] = MappingProxyType({}), *, started: Sequence[int] = ()
) -> Iterator[tuple[list[Host], list[Agent]]]:
    """So many agents, none of which follows anybody yet, and where they listen; ``serving`` are those whose service is
    of another kind. Who answers late on a busy machine is waited for; who is gone refuses at once."""
    hosts, listed = list[Host](), dict[int, Host]()
    with ExitStack() as stack:
        patience = stack.enter_context(pytest.MonkeyPatch.context())
        for name in _ANSWER_DEADLINES:
            patience.setattr(name, 60.0)
        made: list[Agent] = []
        for host in range(count):
            consensus, heard = ConsensusState(host, listed), queue.SimpleQueue[Any]()
            service = serving.get(host, HostService)(
                consensus, SETTINGS, put=heard.put, started=lambda: list(started), flushed=lambda: True
            )
            server = rpc.serve(
                (add_HostServiceServicer_to_server, service),
                host=f"127.0.0.{host + 1}",
                secret=SETTINGS.secret,
                threads=4,
            )
            stack.callback(server.stop)
            name, _, port = server.address.rpartition(":")
            hosts.append(Host(name, 4, int(port)))
            listed[host] = hosts[-1]
            made.append(Agent(consensus, server, heard))
        yield hosts, made


def follow(agent: Agent, text: bytes, *, requests: bytes = b"", version: int = 1, committed: int = 1) -> None:
    """The agent receives a message of the leader on host 0, with this state."""
    sent: dict[str, Any] = {"state": text, "requests": requests, "version": version, "committed": committed}
    agent.consensus.follow("job", 0)
    message = pb.ReplicateRequest(job="job", term=1, leader=0, number=version, now=100.0, **sent)
    assert agent.consensus.append(message) == ""


@contextmanager
def left(
    text: bytes, *, hosts: int = 3, serving: Mapping[int, type[HostService]] = MappingProxyType({})
) -> Iterator[tuple[list[Host], list[Agent]]]:
    """The hosts, and the agents that hold this state when the leader, on host 0, has ended."""
    with agents(hosts, serving) as (places, (leader, *others)):
        for agent in others:
            follow(agent, text)
        leader.stop()
        yield places, others


@contextmanager
def replicator_of(
    hosts: list[Host], *, clock: Callable[[], float] = time.monotonic, incarnation: str = ""
) -> Iterator[tuple[Replicator, queue.SimpleQueue[Any]]]:
    """That of a leader on the first host, which all the others follow."""
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    replicator = Replicator(SETTINGS, leader=0, term=1, clock=clock, put=heard.put)
    for number in range(1, len(hosts)):
        replicator.add_follower(number, hosts[number], incarnation=incarnation)
    try:
        yield replicator, heard
    finally:
        replicator.close()


def free_port(host: str) -> int:
    """One on which nothing listens."""
    with socket.create_server((host, 0)) as once:
        return int(once.getsockname()[1])
