"""The gRPC service of a peer: it receives messages and makes their senders wait, but makes no decisions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.program_identity import Description
from kungfu.runtime.core.request import Asked, SaveCheckpoint, StopTraining
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_description, from_failure, to_asked, to_offer
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceServicer
from kungfu.runtime.peer.failed_peers import FailedPeers
from kungfu.runtime.peer.job_progress import LocalPosition, PastPhases
from kungfu.runtime.peer.rendezvous.rendezvous import RendezvousTable
from kungfu.runtime.state.serve import StateServer

_LOOK_S = 0.2

# Writes a trace of the given number of seconds into a folder; returns the error, or '' without an error.
WriteTrace = Callable[[float, str], str]


def cannot_trace(seconds: float, folder: str) -> str:
    """Refuses to write a trace: the default `WriteTrace`, for a program without a profiler."""
    return "this peer cannot be traced"


def rendezvous_key(arrival: pb.BarrierArrival) -> tuple[int, ...]:
    """The key of an arrival's rendezvous; peers whose variables differed arrive again under another key."""
    return (arrival.version, arrival.begins_view, arrival.number, arrival.round)


class BarrierInbox:
    """The offer of joiners and the external requests that wait for the next barrier. Thread-safe.

    Args:
        on_arrival: Called when there is a reason to hold a barrier.
        failed_peers: The peers that are gone, and cannot join.
    """

    def __init__(self, on_arrival: Callable[[], None], failed_peers: FailedPeers) -> None:
        self._lock, self._on_arrival, self._failed_peers = threading.Lock(), on_arrival, failed_peers
        self._offer: JoinerOffer | None = None
        self._offered = 0  # the number of the last offer
        self._requests: list[Asked] = []
        self._received: set[int | str] = set()  # numbers of requests, and ids of checkpoint requests

    def begin_phase(self, on_arrival: Callable[[], None]) -> None:
        """Prepares this peer for a phase of the job; an offer of joiners from the previous phase is discarded."""
        with self._lock:
            self._on_arrival, self._offer = on_arrival, None

    def remind(self) -> None:
        """Requests a barrier again for requests and offers that arrived while no barrier could be held."""
        with self._lock:
            waits = self._offer is not None or bool(self._requests)
        if waits:
            self._on_arrival()

    def add_offer(self, offer: JoinerOffer) -> None:
        """Replaces the offer of joiners by a newer offer, and requests a barrier."""
        with self._lock:
            # A repetition because the answer was lost, or an older offer.
            if offer.number and offer.number <= self._offered:
                return
            self._offered = offer.number or self._offered
            self._offer = offer
        self._on_arrival()

    def pop_offer(self) -> JoinerOffer | None:
        """Removes and returns the offer of joiners; ``None`` without one, or if a joiner is gone: another follows."""
        with self._lock:
            offer, self._offer = self._offer, None
        stale = offer is not None and any(self._failed_peers.gone(peer.id) for peer in offer.ready)
        return None if stale else offer

    def add_request(self, external: Asked) -> None:
        """Adds an external request, and requests a barrier; does nothing if the request was received before."""
        with self._lock:
            # A checkpoint is requested again with every view, which may have a new coordinator: once is enough.
            key = external.id if isinstance(external.what, SaveCheckpoint) else external.number
            # A repetition because the answer was lost; a request of another peer has no number.
            if key != 0 and key in self._received:
                return
            self._received.add(key)
            self._requests.append(external)
        self._on_arrival()

    def pop_request(self) -> Asked | None:
        """Removes and returns the oldest external request; if others are left, another barrier is requested."""
        with self._lock:
            external = self._requests.pop(0) if self._requests else None
            others = bool(self._requests)
        # A barrier carries out one external request.
        if others:
            self._on_arrival()
        return external

    def is_stop_requested(self) -> bool:
        """True once the end of training is requested; never becomes false again, since no later request replaces it."""
        with self._lock:
            return any(isinstance(external.what, StopTraining) for external in self._requests)


class PeerService(PeerServiceServicer):  # type: ignore[misc]  # generated without types
    """Receives the messages that other peers and the agent send to this peer.

    Args:
        deadline_s: The longest wait of a peer for another, in seconds.
        on_offer: Called in a server thread when there is a reason to hold a barrier.
        prepare_attachment: Prepares the attachment for a view of the given size; returns the attachment's address.
        write_trace: Writes a trace of this program; called in a server thread.
        on_failure: Called in a server thread when the agent has announced a failed peer or a broken view.
    """

    def __init__(
        self,
        *,
        deadline_s: float,
        on_offer: Callable[[], None],
        prepare_attachment: Callable[[int], str],
        write_trace: WriteTrace = cannot_trace,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.rendezvous: RendezvousTable[pb.BarrierArrival, pb.Admission] = RendezvousTable()
        self.state_server = StateServer()
        self.failed_peers = FailedPeers()
        self.inbox = BarrierInbox(on_offer, self.failed_peers)
        self._deadline_s, self._prepare_attachment = deadline_s, prepare_attachment
        self._changed = threading.Condition()
        self._admission: pb.Admission | None = None
        self._newest = (0, 0)  # the version and the term of the last admission
        self._preparing = threading.Lock()
        self._prepared: tuple[pb.ViewInfo, str] | None = None
        self.description = Description()
        self._write_trace, self._tracing = write_trace, threading.Lock()
        self._on_failure = on_failure
        self.past_phases = PastPhases()
        self.position = LocalPosition()

    # Other peers wait longer than their coordinator, to get the coordinator's error, which names the missing peers.

    def Arrive(self, request: pb.BarrierArrival, context: Any) -> pb.Admission:  # noqa: N802 - gRPC's name
        rendezvous = self.rendezvous.at(rendezvous_key(request))
        rendezvous.arrive(request.rank, request)
        if (reply := rendezvous.result(deadline_s=2 * self._deadline_s)) is not None:
            return reply
        # The coordinator, this peer, did not conclude within its wait.
        return pb.Admission(failure=from_failure(PeerFailure("the coordinator never decided")))

    def Fetch(self, request: pb.FetchRequest, context: Any) -> Iterator[pb.StateChunk]:  # noqa: N802 - gRPC's name
        try:
            yield from self.state_server.stream(request, deadline_s=self._deadline_s)
        # This peer does not serve this transfer, or an earlier rank did not receive its part.
        except DeadlineExceeded as error:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        # The plan assigns nothing, or other bytes, to the requesting rank.
        except PeerFailure as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    def Admit(self, request: pb.Admission, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        with self._changed:
            # Of two views the later one counts; of two agents that form the same view, the leader of the later term.
            at = request.decision.view.version, request.term
            newest = max(self._newest, at)
            late = newest != at
            if not late:
                self._admission, self._newest = request, newest
                self._changed.notify_all()
        # The message was sent before this peer's newest admission, and arrived after it.
        if late:
            version, term = self._newest
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this peer is admitted to view {version} (of term {term}): view {at[0]} of term "
                f"{request.term} is not in force any more",
            )
        return pb.Ack()

    @rpc.receives(to_offer)
    def OfferJoiners(self, offer: JoinerOffer, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self.inbox.add_offer(offer)
        return pb.Ack()

    @rpc.receives(to_asked)
    def ForwardRequest(self, external: Asked, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self.inbox.add_request(external)
        return pb.Ack()

    def AnnounceFailure(self, request: pb.FailureAnnouncement, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self.failed_peers.announce(peer=request.peer, version=request.version, how=request.how)
        self.rendezvous.wake()
        self._on_failure()
        return pb.Ack()

    def PrepareAttachment(self, request: pb.ViewInfo, context: Any) -> pb.AttachmentAddress:  # noqa: N802 - gRPC's name
        with self._preparing:
            # A repetition, since the answer was lost or from another agent: peers may already use the first address.
            if self._prepared is None or self._prepared[0] != request:
                self._prepared = request, self._prepare_attachment(len(request.peers))
            return pb.AttachmentAddress(address=self._prepared[1])

    def DescribeProgram(self, request: pb.Empty, context: Any) -> pb.ProgramDescription:  # noqa: N802 - gRPC's name
        return from_description(self.description)

    def WriteTrace(self, request: pb.TraceRequest, context: Any) -> pb.TraceReply:  # noqa: N802 - gRPC's name
        # The profiler writes one trace at a time.
        if not self._tracing.acquire(blocking=False):
            return pb.TraceReply(error="a trace of this peer is being written already")
        try:
            return pb.TraceReply(error=self._write_trace(request.seconds, request.folder))
        finally:
            self._tracing.release()

    def FetchPhase(self, request: pb.PhaseRequest, context: Any) -> Iterator[pb.StateChunk]:  # noqa: N802 - gRPC's name
        yield from self.past_phases.stream(request.number, context)

    def GetPosition(self, request: pb.Empty, context: Any) -> pb.DataPosition:  # noqa: N802 - gRPC's name
        return self.position.message()

    def admission(self, *, after: int, meanwhile: Callable[[], None] = lambda: None) -> pb.Admission:
        """Waits for the newest view that admits this peer; a newer view ends all waits in earlier views.

        Views up to version ``after`` are ignored; ``meanwhile`` is called five times a second. The wait has no
        deadline, since the agent ends a peer that waits in vain.
        """
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._admission is not None and self._newest[0] > after, _LOOK_S):
                    admission, self._admission = self._admission, None
                    assert admission is not None
                    return admission
            meanwhile()
