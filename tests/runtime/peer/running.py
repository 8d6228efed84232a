"""Peers of one process, each in a thread, with a stub for their agent."""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from kungfu.event_log.codec import event_to_line, unpack_event
from kungfu.runtime.attachment.protocol import Attachment, SilentRanks
from kungfu.runtime.core.barrier import BarrierResult
from kungfu.runtime.core.cluster.events import PeerProgressed, PeersLost, ViewStarted
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.request import Asked, Resize
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_decision, from_offer, from_peer, to_report
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.runtime.ipc.joiner_page import JoinerPage
from kungfu.runtime.ipc.messages_pb2_grpc import (
    AgentServiceServicer,
    PeerServiceStub,
    add_AgentServiceServicer_to_server,
    add_PeerServiceServicer_to_server,
)
from kungfu.runtime.peer.membership import JobMembership
from kungfu.runtime.peer.peer_service import PeerService
from kungfu.runtime.settings import Deadlines, Limits, Settings
from tests.runtime.peer.held import Held, Numbers

SECRET = "ab" * 32
TERMS = Terms(64, 32.0)
SHORT_S = 0.6  # for a wait that is to expire
WITHIN_S = 180.0


@dataclass
class Socket(Attachment):
    """An attachment that only remembers what it was plugged into."""

    name: str = "memory"
    opened: list[dict[str, Any]] = field(default_factory=list)
    plugged: bool = False
    stopped: list[int] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)  # and not closed since
    looks: int = 0  # times that it was told to look again for a failure

    def look_again(self) -> None:
        self.looks += 1

    def silent(self) -> SilentRanks:
        return SilentRanks(self.opened[-1]["me"].view if self.opened else 0, tuple(self.stopped))

    def prepare(self, size: int) -> str:
        self.prepared.append(f"store for {size}")
        return self.prepared[-1]

    def open(self, me: Credentials, **to: Any) -> None:
        self.opened.append({"me": me, **to})
        self.plugged = True

    def close(self) -> None:
        self.plugged = False
        self.prepared.clear()


@dataclass
class Agent(AgentServiceServicer):
    """Keeps what the peers say."""

    ready: queue.SimpleQueue[Peer] = field(default_factory=queue.SimpleQueue)
    wanted: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    in_force: list[View] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    losses: queue.SimpleQueue[PeersLost] = field(default_factory=queue.SimpleQueue)
    attached: int = 0  # times that a peer said so
    is_silent: bool = False

    def ReportEvent(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        match to_report(request):
            case PeerProgressed(ready=False) if self.is_silent:
                context.abort(grpc.StatusCode.UNAVAILABLE, "of the test")
            case PeerProgressed(ready=False):
                self.attached += 1
            case PeerProgressed(peer):
                self.ready.put(peer)
            case Decision(prepare=size):
                self.wanted.put(size)
            case ViewStarted(view):
                self.in_force.append(view)
            case PeersLost() as lost:
                self.losses.put(lost)
        return pb.Ack()

    def GetPhaseProgress(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        if self.is_silent:
            context.abort(grpc.StatusCode.UNAVAILABLE, "of the test")
        peers = self.in_force[-1].peers if self.in_force else ()
        return pb.PhaseProgress(holders=map(from_peer, peers))

    def ReportRecords(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        packed = (record.event for record in request.records if record.HasField("event"))
        self.reports += map(event_to_line, map(unpack_event, packed))
        return pb.Ack()

    def ReportFinished(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return pb.Ack()


@dataclass
class Member:
    """One peer of the job."""

    membership: JobMembership
    state: Any  # Held, or Numbers
    socket: Socket
    posts: list[str]

    def expect_within(self, wait_s: float) -> None:
        """From now on it waits so long for others and the agent; what came before had the time that it needed."""
        object.__setattr__(self.membership._protocol.settings.deadlines, "wait_s", wait_s)
        self.membership._protocol.agent_client._deadline_s = wait_s


@dataclass
class Job:
    """The agent, the threads in which the peers run, and the peers."""

    agent: Agent
    address: str
    wait_s: float
    threads: ThreadPoolExecutor
    members: list[Member] = field(default_factory=list)
    servers: list[rpc.Server] = field(default_factory=list)
    joiners: JoinerPage = field(default_factory=JoinerPage.create)

    def add(self, content: bytes | Numbers) -> Member:
        settings = Settings(
            f"membership-{os.getpid()}",
            len(self.members),
            self.address,
            SECRET,
            "local",
            Limits(1, 4),
            Deadlines(wait_s=self.wait_s),
            joiner_page=self.joiners.path,
        )
        socket, posts = Socket(), list[str]()
        membership = JobMembership(settings, attachment=socket, on_offer=lambda: posts.append("offer"))
        state = Held(content) if isinstance(content, bytes) else content
        self.members.append(Member(membership, state, socket, posts))
        return self.members[-1]

    def serve_silence(self) -> str:
        """Where a peer listens that takes in every message and does nothing about it."""
        service = PeerService(deadline_s=self.wait_s, on_offer=lambda: None, prepare_attachment=str)
        server = rpc.serve((add_PeerServiceServicer_to_server, service), host="127.0.0.1", secret=SECRET, threads=2)
        self.servers.append(server)
        return server.address

    def begin(self, member: Member) -> tuple[Future[BarrierResult], Peer]:
        """Lets a peer join in its thread; returns when the agent has heard that it is ready."""
        joining = self.threads.submit(member.membership.join, member.state)
        return joining, self.agent.ready.get(timeout=WITHIN_S)

    def offer(self, *peers: Peer, **parts: float) -> None:
        """Offers these joiners to the coordinator."""
        tell(self.agent.in_force[0].peers[0], "OfferJoiners", from_offer(JoinerOffer(peers, parts=parts)))

    def grow(self, content: bytes | Numbers) -> tuple[list[Any], Future[BarrierResult]]:
        """The outcomes of the peers at the barrier that admits one more, and that of the joiner."""
        before = [*self.members]
        waiting = self.all_do(barrier(len(before) + 1))[0].after.terms
        joining, peer = self.begin(self.add(content))
        self.offer(peer)
        return self.all_do(barrier(terms=waiting), before), joining

    def hold_each(self, method: str = "hold_barrier", **by_rank: Sequence[Any]) -> list[Any]:
        """The outcomes of a barrier to which each peer brings its own of these."""

        def hold(member: Member) -> BarrierResult:
            own = {name: values[self.members.index(member)] for name, values in by_rank.items()}
            return getattr(member.membership, method)(member.state, **{"terms": TERMS, **own})

        return self.all_do(hold)

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """What the peers told the agent, once everything of it has arrived."""
        for member in self.members:
            member.membership.finish({"steps": 0, "traces": 0}, leaving=False)
        return [event for event in map(json.loads, self.agent.reports) if kind in ("", event["event"])]

    def all_do(self, what: Callable[[Member], Any], members: Sequence[Member] | None = None) -> list[Any]:
        """Every member's result, or the error of its own."""
        doing = [self.threads.submit(what, member) for member in (self.members if members is None else members)]
        return [error if (error := one.exception(WITHIN_S)) else one.result() for one in doing]


@contextmanager
def job(*contents: bytes | Numbers, wait_s: float = 60.0) -> Iterator[Job]:
    """A job whose first view, of peers that hold ``contents``, is in force."""
    agent = Agent()
    server = rpc.serve((add_AgentServiceServicer_to_server, agent), host="127.0.0.1", secret=SECRET, threads=8)
    with ThreadPoolExecutor(8) as threads:
        running = Job(agent, server.address, wait_s, threads)
        try:
            begun = [running.begin(running.add(content)) for content in contents]
            view = View(1, tuple(peer for _, peer in begun))
            admit(view)
            for joining, _ in begun:
                joining.result(WITHIN_S)
            yield running
        finally:
            for member in running.members:
                member.membership.close()
            for one in (server, *running.servers):
                one.stop()
            running.joiners.close()


def admit(view: View, *, sources: Sequence[int] = (0,), target: int = 0) -> None:
    """The job admits the peers of a view; these ranks hold the state, and after a loss the job is to have a size."""
    message = pb.Admission(decision=from_decision(Decision(view, TERMS)), attachment_address="r", sources=sources)
    message.recovery.target = target
    for peer in view.peers:
        tell(peer, "Admit", message)


def tell(peer: Peer, method: str, message: Any) -> None:
    with rpc.connect(peer.address, secret=SECRET) as channel:
        rpc.call(getattr(PeerServiceStub(channel), method), message, deadline_s=60.0, what=f"peer {peer.id}")


def barrier(*sizes: int, terms: Terms = TERMS) -> Callable[[Member], BarrierResult]:
    """A barrier at which the rules of every peer ask for the same."""
    requests = tuple(Asked(Resize(size, "local_batch_size"), "rule", 7) for size in sizes)
    return lambda member: member.membership.hold_barrier(member.state, terms, requests=requests)


def errors_of(outcomes: list[Any]) -> list[str]:
    return [f"{type(outcome).__name__}: {outcome}" for outcome in outcomes]
