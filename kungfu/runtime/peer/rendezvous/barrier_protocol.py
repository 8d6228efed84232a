"""The two rendezvous of a barrier: the peers of a view arrive; rank 0 compares their states and sends the result.

At the first rendezvous, all peers of a view submit the digests of their states, and the coordinator (rank 0) decides.
At the second, the peers of a new view have connected to each other and fetched the state, and compare it. If some
variables differ at a rendezvous, a second round follows: every peer fetches rank 0's values of these variables, adopts
the values that differ from its own by rounding only, and arrives again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from kungfu.errors import KungfuError, PeerFailure
from kungfu.event_log.events import DissentEvent, ShadowDissentEvent
from kungfu.runtime.attachment.protocol import Attachment
from kungfu.runtime.core.barrier import Decision
from kungfu.runtime.core.cluster.events import ViewStarted
from kungfu.runtime.core.shadow import differing
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_decision, from_failure, from_view, to_decision, to_failure, to_shadow
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.peer.agent_client import AgentClient
from kungfu.runtime.peer.peer_service import PeerService, rendezvous_key
from kungfu.runtime.peer.rendezvous.state_comparison import from_gaps, rounding_event, variables_to_reconcile
from kungfu.runtime.settings import Settings
from kungfu.runtime.state.compare import VariableGap
from kungfu.runtime.state.replicated_state import ReplicatedState, TransferContext
from kungfu.runtime.state.state_sync import reconcile_variables, sync_state

# Makes the terms of a view on its rank 0: of a view of survivors, or of the first view of a phase.
MakeTerms = Callable[[], Terms]
# Makes the result of a rendezvous from the arrivals by rank; called on rank 0, once all hold the same state.
Conclude = Callable[[Mapping[int, pb.BarrierArrival]], pb.Admission]


@dataclass(frozen=True)
class LocalArrival:
    """The arrival of this peer at a rendezvous, with the state from which its checksums are computed.

    Args:
        message: The arrival, as sent to the coordinator.
        names: The names of the variables with a checksum.
        digest: Computes these checksums again.
    """

    message: pb.BarrierArrival
    names: Sequence[str]
    digest: Callable[[], dict[str, int]]
    state: ReplicatedState

    def again(self, gaps: Sequence[VariableGap]) -> LocalArrival:
        """This arrival for the second round, with new checksums and the measured differences from rank 0's values."""
        message = pb.BarrierArrival()
        message.CopyFrom(self.message)
        message.ClearField("digests")
        message.MergeFrom(pb.BarrierArrival(round=1, digests=self.digest().values(), gaps=from_gaps(gaps)))
        return replace(self, message=message)


@dataclass(frozen=True)
class BarrierProtocol:
    """Holds both rendezvous of a barrier for this peer."""

    settings: Settings
    attachment: Attachment
    service: PeerService
    agent_client: AgentClient
    channels: rpc.ChannelPool
    reported_rounding: set[str] = field(default_factory=set)  # the variables named by earlier events

    def hold(self, view: View, arrival: LocalArrival, decision: Callable[[], Decision]) -> pb.Admission:
        """Holds the barrier with the other peers of ``view``; rank 0 compares the states and decides.

        Args:
            arrival: The arrival of this peer. Variables that differ by rounding only are set to rank 0's values.
            decision: Makes the decision; called on rank 0, once all have arrived and hold the same state.

        Returns:
            The decision of the coordinator.

        Raises:
            DeadlineExceeded: A peer did not arrive; the error names it.
            PeerFailure: A peer is gone.
            UsageError: The states differ. All peers raise the coordinator's error.
        """

        def conclude(arrivals: Mapping[int, pb.BarrierArrival]) -> pb.Admission:
            self._log_rounding(arrival.names, arrivals, view)
            self._log_dissent({rank: message.requested for rank, message in arrivals.items()}, view)
            self._log_other_shadows(arrivals, view)
            return self._announce(view, decision())

        reply = self._arrive(view, arrival, conclude)
        return self._arrive_again(view, arrival, conclude, reply.differing) if reply.differing else reply

    def install(
        self,
        entering: Decision,
        admission: pb.Admission,
        state: ReplicatedState,
        parts: dict[str, float],
        make_terms: MakeTerms | None = None,
    ) -> Decision:
        """Enters a view: connects to its peers, fetches and compares the state, and reports the start of the view.

        Args:
            entering: The view and its settings.
            admission: Contains the address at which the peers connect, and the ranks that already hold the state.
            parts: A dictionary that receives the seconds taken by connecting and by the state, by name.
            make_terms: Makes the settings on rank 0, if ``entering`` lacks them; called once rank 0 has the state.

        Returns:
            The decision in force in the view.

        Raises:
            PeerFailure: A member is gone.
            DeadlineExceeded: A member did not arrive; the error names it.
            InternalError: The states differ.
        """
        view, rank, started = entering.view, entering.view.rank_of(self.settings.peer), time.monotonic()
        assert rank is not None
        context, abandoned = self._transfer(view, rank, sources=admission.sources), partial(self.abandon_reason, view)

        def attach() -> None:
            self.attachment.open(
                context.me,
                deadline_s=context.deadline_s,
                addresses=[peer.address for peer in view.peers],
                rendezvous=admission.attachment_address,
                abandoned=abandoned,
            )
            parts["attach"] = time.monotonic() - started

        def conclude(arrivals: Mapping[int, pb.BarrierArrival]) -> pb.Admission:
            # Some variables differed by rounding, and now have rank 0's values.
            if (event := rounding_event(arrival.names, arrivals, view)) is not None:
                self.agent_client.record("events", event)
            terms = entering.terms if make_terms is None else make_terms()
            begun = None if make_terms is None else from_decision(Decision(view, terms))
            # The agent is notified first: no peer may know of a view that its agent does not know.
            self.agent_client.report(ViewStarted(view, terms))
            return pb.Admission(decision=begun)

        def connected() -> None:
            if admission.HasField("recovery"):
                state.regrouped(rank=rank, size=view.size, is_source=context.holds_state)

        server = self.service.state_server
        with sync_state(
            state, context, server=server, attach=attach, connected=connected, abandoned=abandoned
        ) as digest:
            parts["state/take and compare"], names = time.monotonic() - started, tuple(digest)
            message = pb.BarrierArrival(version=view.version, rank=rank, digests=digest.values(), begins_view=True)
            arrival = LocalArrival(message, names, state.digest, state)
            reply = self._arrive(view, arrival, conclude)
        # The view cannot begin yet: some variables are not the same on all peers.
        if reply.differing:
            reply = self._arrive_again(view, arrival, conclude, reply.differing)
        self.channels.keep(peer.address for peer in view.peers)
        parts["state/agree"] = time.monotonic() - started - parts["state/take and compare"]
        parts["state"] = time.monotonic() - started - parts["attach"]
        # Otherwise the terms came with the admission.
        return to_decision(reply.decision) if reply.HasField("decision") else entering

    def _arrive(self, view: View, arrival: LocalArrival, conclude: Conclude) -> pb.Admission:
        """Arrives at a rendezvous with the other peers of ``view``; returns the result, which rank 0 determines.

        In the first round, the result may consist only of the indices of differing variables. All peers raise the
        coordinator's error.
        """
        message = arrival.message
        if message.rank == 0:
            reply = self._conclude(view, arrival, conclude)
        else:
            reply = self._call_coordinator(view, message)
        # All peers raise the coordinator's error, which does not mean that the coordinator is lost.
        if reply.HasField("failure"):
            raise to_failure(reply.failure)
        return reply

    def _arrive_again(
        self, view: View, arrival: LocalArrival, conclude: Conclude, differing: Sequence[int]
    ) -> pb.Admission:
        """Adopts rank 0's values of ``differing`` that differ by rounding only, then arrives for the second round."""
        context = self._transfer(view, arrival.message.rank, f"values of {_in_words(arrival.message)}")
        server, abandoned = self.service.state_server, partial(self.abandon_reason, view)
        with reconcile_variables(arrival.state, context, differing, server=server, abandoned=abandoned) as gaps:
            return self._arrive(view, arrival.again(gaps), conclude)

    def _transfer(self, view: View, rank: int, purpose: str = "", *, sources: Sequence[int] = (0,)) -> TransferContext:
        """The transfer from rank 0 of the values that ``purpose`` names, or from ``sources`` of the whole state."""
        settings = self.settings
        me = Credentials(settings.job, view.version, rank, view.size, bytes.fromhex(settings.secret))
        return TransferContext(view, me, sources, settings.deadlines.wait_s, purpose)

    def abandon_reason(self, view: View) -> PeerFailure | None:
        """The failure that makes a wait for the peers of ``view`` pointless: a peer is gone or silent."""
        return self.service.failed_peers.failure_in(view) or self.silent_peers(view)

    def silent_peers(self, view: View) -> PeerFailure | None:
        """The failure that names the peers of ``view`` without heartbeats; ``None`` if there are none."""
        silence = self.attachment.silent()
        if not silence.ranks or silence.view != view.version:  # ranks of another view are other peers
            return None
        text = f"rank {', rank '.join(map(str, silence.ranks))} shows no life"
        return PeerFailure(text, ranks=silence.ranks, peers=map(view.ids.__getitem__, silence.ranks), view=view.version)

    def _call_coordinator(self, view: View, arrival: pb.BarrierArrival) -> pb.Admission:
        coordinator = view.peers[0]
        reply: pb.Admission = rpc.call(
            PeerServiceStub(self.channels.to(coordinator.address)).Arrive,
            arrival,
            deadline_s=2.5 * self.settings.deadlines.wait_s,
            what=f"rank 0 (peer {coordinator.id}), leading {_in_words(arrival)}",
            peer=coordinator.id,
            abandoned=partial(self.abandon_reason, view),
        )
        return reply

    def _conclude(self, view: View, arrival: LocalArrival, conclude: Conclude) -> pb.Admission:
        rendezvous = self.service.rendezvous.at(rendezvous_key(arrival.message))
        rendezvous.arrive(0, arrival.message)
        try:
            arrivals = rendezvous.everyone(
                view.size,
                deadline_s=self.settings.deadlines.wait_s,
                what=_in_words(arrival.message),
                abandoned=partial(self.abandon_reason, view),
            )
            # Some variables differ between peers: the second round compares them before a conclusion.
            differing = variables_to_reconcile(arrival.names, arrivals, view)
            reply = pb.Admission(differing=differing) if differing else conclude(arrivals)
        # A peer did not arrive, is gone or has another state, or a joiner was not admitted: all peers raise the error.
        except KungfuError as error:
            rendezvous.conclude(pb.Admission(failure=from_failure(error)))
            raise
        rendezvous.conclude(reply)
        return reply

    def _log_rounding(self, names: Sequence[str], arrivals: Mapping[int, pb.BarrierArrival], view: View) -> None:
        """Records which variables differed by rounding; the event is marked as repeated if all were named earlier."""
        if (event := rounding_event(names, arrivals, view)) is not None:
            news = {one.name for one in event.widest}
            self.agent_client.record("events", msgspec.structs.replace(event, again=news <= self.reported_rounding))
            self.reported_rounding.update(news)

    def _log_dissent(self, requested: Mapping[int, str], view: View) -> None:
        """Records that the rules of the peers made different requests; rank 0's requests count."""
        # Arithmetic may differ in the last bit between machines.
        if len(set(requested.values())) > 1:
            by_rank = {str(rank): words for rank, words in requested.items()}
            self.agent_client.record("events", DissentEvent(view=view.version, requests=by_rank))

    def _log_other_shadows(self, arrivals: Mapping[int, pb.BarrierArrival], view: View) -> None:
        """Records the requests of shadow rules, which are never carried out, if only some peers made these requests."""
        asked = {rank: [*map(to_shadow, message.shadows)] for rank, message in sorted(arrivals.items())}
        if found := differing(asked):
            shadows = {str(rank): what for rank, what in found.items()}
            self.agent_client.record("events", ShadowDissentEvent(view=view.version, shadows=shadows))

    def _announce(self, view: View, decision: Decision) -> pb.Admission:
        """Notifies the agent and the joiners of the decision; returns the reply to the peers of the view."""
        stayers = [rank for rank, peer in enumerate(decision.view.peers) if view.rank_of(peer.id) is not None]
        admission = pb.Admission(decision=from_decision(decision), sources=stayers)
        # The change under way needs a different number of processes.
        if decision.prepare is not None:
            self.agent_client.report(decision)
        # The view changes: its members need the address of its attachment, and joiners need an admission.
        if decision.view.version != view.version:
            admission.attachment_address = self._attachment_address(decision.view)
            for peer in decision.view.peers[len(stayers) :]:
                self._admit(peer, admission)
        return admission

    def _attachment_address(self, view: View) -> str:
        first = view.peers[0]
        # This peer stays rank 0.
        if first.id == self.settings.peer:
            return self.attachment.prepare(view.size)
        with rpc.connect(first.address, secret=self.settings.secret) as channel:
            prepare, deadline_s = PeerServiceStub(channel).PrepareAttachment, self.settings.deadlines.wait_s
            what = f"peer {first.id}, first of view {view.version}"
            answer: pb.AttachmentAddress = rpc.call(
                prepare, from_view(view), deadline_s=deadline_s, what=what, peer=first.id
            )
        return answer.address

    def _admit(self, peer: Peer, admission: pb.Admission) -> None:
        stub = PeerServiceStub(self.channels.to(peer.address))
        deadlines = self.settings.deadlines  # a joiner only waits for this call, and all others wait for the joiner
        patience_s = min(deadlines.wait_s, 2 * deadlines.heartbeat_s)
        rpc.call(stub.Admit, admission, deadline_s=patience_s, what=f"peer {peer.id}, about to join", peer=peer.id)


def _in_words(arrival: pb.BarrierArrival) -> str:
    """The name of an arrival's rendezvous, for errors."""
    if arrival.begins_view:
        return f"the start of view {arrival.version}"
    return f"barrier {arrival.number} of view {arrival.version}"
