"""Carries out a peer's membership in the job: its admission, the barriers with the decisions of ``decide``, its exit.

A barrier has two rendezvous. At the first, all peers of the view submit the digests of their states, and the
coordinator (rank 0) decides on the next view and its settings (`BarrierProtocol.hold`). If the view changes, the peers
that stay or join connect to each other for the all-reduce, and the joiners fetch the state. At the second rendezvous
all digests are compared again (`BarrierProtocol.install`), so that no step runs on a state that differs between peers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import psutil

from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure
from kungfu.runtime.attachment.protocol import Attachment
from kungfu.runtime.core.barrier import Adjust, BarrierInput, BarrierResult, Decision, LossRecovery, as_decided, decide
from kungfu.runtime.core.cluster.events import PeerNoticed, PeerProgressed
from kungfu.runtime.core.program_identity import NOTHING_SAID, Description, Identity
from kungfu.runtime.core.request import Asked, Leave, Resize, changes_membership, in_words, merge
from kungfu.runtime.core.shadow import ShadowAsk
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import NO_SPEEDS, Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_shadow, to_decision
from kungfu.runtime.ipc.joiner_page import JoinerPage
from kungfu.runtime.ipc.messages_pb2_grpc import add_PeerServiceServicer_to_server
from kungfu.runtime.peer.agent_client import AgentClient, RecordEntry, repeated
from kungfu.runtime.peer.failed_peers import NoticedLoss
from kungfu.runtime.peer.job_progress import DataPositionClient, fetch_phase, phase_watch
from kungfu.runtime.peer.membership_protocol import Membership
from kungfu.runtime.peer.peer_service import PeerService, WriteTrace, cannot_trace
from kungfu.runtime.peer.regroup_protocol import ViewProgress, forward_stop, report_and_await_admission, survivor_terms
from kungfu.runtime.peer.rendezvous.barrier_protocol import BarrierProtocol, LocalArrival, MakeTerms
from kungfu.runtime.peer.rendezvous.state_comparison import turn_of
from kungfu.runtime.preemption import on_preemption_signal
from kungfu.runtime.settings import Settings
from kungfu.runtime.state.compare import Compared
from kungfu.runtime.state.replicated_state import ReplicatedState

# Without this pause, the program of a removed peer would use processor time while other peers open their attachments.
_STEP_ASIDE_S = 0.1


class JobMembership(Membership):
    """The membership of a peer that ``kungfu-run`` has launched; see `Membership`."""

    data_position: DataPositionClient

    def __init__(
        self,
        settings: Settings,
        *,
        attachment: Attachment,
        on_offer: Callable[[], None],
        write_trace: WriteTrace = cannot_trace,
    ) -> None:
        service = PeerService(
            deadline_s=settings.deadlines.wait_s,
            on_offer=on_offer,
            prepare_attachment=attachment.prepare,
            write_trace=write_trace,
            on_failure=attachment.look_again,
        )
        self._server = rpc.serve(
            (add_PeerServiceServicer_to_server, service),
            host=settings.host,
            secret=settings.secret,
            threads=8 + 2 * settings.limits.maximum,
        )
        agent_client = AgentClient(settings, Peer(settings.peer, self._server.address))
        channels = rpc.ChannelPool(secret=settings.secret)
        self._service, self._protocol = service, BarrierProtocol(settings, attachment, service, agent_client, channels)
        self._report_attached()
        self._views, self.past_phases = ViewProgress(), service.past_phases
        self.data_position = DataPositionClient(
            service.position, agent_client, channels, settings, report_attached=self._report_attached
        )
        # `withdraw` and `close` may run in two threads; two threads that both shut Horovod down would wait forever.
        self._unplugging = threading.Lock()
        self._preemption = ExitStack()
        self._joiners = JoinerPage.open(settings.joiner_page)

    @property
    def view(self) -> View:
        return self._member().view

    def on_the_way(self) -> AbstractContextManager[None]:
        """Makes the agent wait for this peer to get ready, until the block ends or half an hour has passed."""
        return repeated(self._report_attached)

    def _report_attached(self) -> None:
        """Reports that the program runs under the job and prepares its first step; repeated until it is ready."""
        client = self._protocol.agent_client
        client.report(PeerProgressed(client.peer, ready=False))

    def lasting_failure(self) -> PeerFailure | None:
        in_force = self._views.in_force
        return None if in_force is None else self._service.failed_peers.lasting_failure_in(in_force.view)

    # ---- phases --------------------------------------------------------------------------------------------------

    @property
    def has_joined(self) -> bool:
        return self._views.in_force is not None

    def phases_over(self) -> int:
        return self._protocol.agent_client.phase_progress().over

    def fetch_phase(self, number: int) -> bytes:
        content = self.past_phases.content(number)
        if content is None:
            content = fetch_phase(number, self._protocol.settings, self._protocol.agent_client)
        return content

    def begin_phase(self, number: int, *, on_offer: Callable[[], None]) -> None:
        self._service.inbox.begin_phase(on_offer)
        self.data_position.local.begin_phase(number)

    # ---- entries and exits ---------------------------------------------------------------------------------------

    def join(
        self,
        state: ReplicatedState,
        *,
        description: Description = NOTHING_SAID,
        machine: str = "",
        opening_terms: Callable[[View, int], Terms] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> BarrierResult:
        with state.writable():  # the first use is slow, and here no other peer waits for it
            state.digest()
        service, client, peer = self._service, self._protocol.agent_client, self._protocol.settings.peer
        service.description = description
        # From here on this peer only waits, and takes no processor time from the other peers of its host.
        self._not_on_their_way([peer])
        identity = Identity(description.digest, machine)
        phase, memory_bytes = self.data_position.local.phase, psutil.Process().memory_full_info().uss
        # Closed before the report: the agent may prepare the attachment of a view before the report has returned.
        self._protocol.attachment.close()
        client.report(PeerProgressed(client.peer, True, identity, phase, memory_bytes))

        def make_terms(view: View, admission: pb.Admission) -> MakeTerms | None:
            # Otherwise the terms come with the admission.
            if opening_terms is None or not view.begins_phase:
                return None
            return partial(opening_terms, view, admission.target)

        result = self._enter_when_admitted(state, make_terms, None, None, meanwhile)
        self._preemption.callback(on_preemption_signal(lambda: client.report(PeerNoticed(peer))))
        service.inbox.remind()
        return result

    def host_joiners(self) -> int | None:
        return None if self._joiners is None else self._joiners.count()

    def recover(self, state: ReplicatedState, loss: NoticedLoss, *, adjust: Adjust = as_decided) -> BarrierResult:
        before = replace(self._member(), terms=loss.terms)

        def make_terms(view: View, admission: pb.Admission) -> MakeTerms:
            return survivor_terms(self._protocol, before, view, admission.recovery.target, adjust)

        return self._enter_when_admitted(state, make_terms, before, loss)

    def hold_barrier(
        self,
        state: ReplicatedState,
        terms: Terms,
        *,
        requests: Sequence[Asked] = (),
        shadows: Sequence[ShadowAsk] = (),
        adjust: Adjust = as_decided,
        speeds: Mapping[int, float] = NO_SPEEDS,
        compared: Compared = "part",
    ) -> BarrierResult:
        before = replace(self._member(), terms=terms)
        started, parts = time.monotonic(), dict[str, float]()
        arrival = self._next_arrival(before, state, requests, shadows, compared)
        parts["barrier/digest"] = time.monotonic() - started
        offer = self._service.inbox.pop_offer() if arrival.message.rank == 0 else None
        made: Decision | None = None

        def decision() -> Decision:
            nonlocal made
            limits = self._protocol.settings.limits
            made = decide(BarrierInput(before.view, terms, limits, requests, offer, speeds), adjust=adjust)
            return made

        admission = self._protocol.hold(before.view, arrival, decision)
        # The coordinator uses its local decision, in which whole numbers are exact; messages may round them.
        after = made or to_decision(admission.decision)
        parts["barrier"] = time.monotonic() - started
        parts["barrier/meeting"] = parts["barrier"] - parts["barrier/digest"]
        self._apply(before, after, admission, state, parts)
        peer, sources = self._protocol.settings.peer, tuple(admission.sources)
        return BarrierResult(before, after, peer, offer=offer, parts=parts, sources=sources)

    def final_barrier(self, state: ReplicatedState, terms: Terms, *, shadows: Sequence[ShadowAsk] = ()) -> None:
        before = replace(self._member(), terms=terms)
        arrival = self._next_arrival(before, state, (), shadows, "part")
        self._protocol.hold(before.view, arrival, lambda: Decision(before.view, terms))

    def mark_state_complete(self) -> None:
        self._views.holds_state = True

    def pop_external_request(self) -> Asked | None:
        return self._service.inbox.pop_request() if self._rank_in(self._member().view) == 0 else None

    def record(self, stream: str, entry: RecordEntry) -> None:
        self._protocol.agent_client.record(stream, entry)

    def finish(self, summary: Mapping[str, Any], *, leaving: bool, phase: int = 0) -> None:
        self._preemption.close()
        self._protocol.agent_client.finish(summary, leaving=leaving, phase=phase)

    def withdraw(self) -> None:
        with self._unplugging:
            self._protocol.attachment.leave()
        self._server.stop()

    def close(self) -> None:
        with self._unplugging:
            self._protocol.attachment.close()
        self._protocol.channels.keep([])
        self._protocol.agent_client.close()
        self._server.stop()
        if self._joiners is not None:
            self._joiners.close()

    def _next_arrival(
        self,
        before: Decision,
        state: ReplicatedState,
        requests: Sequence[Asked],
        shadows: Sequence[ShadowAsk],
        compared: Compared,
    ) -> LocalArrival:
        """This peer's arrival at its next barrier: the checksums of its state, and the requests of its rules."""
        number = self._views.barriers
        self._views.barriers += 1
        # The peers agree on the requests of rules; only rank 0 gets requests from outside and from a stopping program.
        of_rules = merge(one for one in requests if changes_membership(one) and not one.is_outside)
        text = " and ".join(_request_text(one) for one in of_rules if not one.superseded_by)
        version, rank = before.view.version, self._rank_in(before.view) or 0
        digest = state.digest if compared == "all" else partial(state.sampled_digest, turn_of(version, number))
        found = digest()
        message = pb.BarrierArrival(version=version, number=number, rank=rank, requested=text, digests=found.values())
        message.shadows.extend(map(from_shadow, shadows))
        return LocalArrival(message, tuple(found), digest, state)

    def _member(self) -> Decision:
        in_force = self._views.in_force
        if in_force is None or self._rank_in(in_force.view) is None:
            raise InternalError("a barrier was held by a peer that is in no view")
        return in_force

    def _apply(
        self,
        before: Decision,
        after: Decision,
        admission: pb.Admission,
        state: ReplicatedState,
        parts: dict[str, float],
    ) -> None:
        # The view stays the same; its terms may change.
        if after.view.version == before.view.version:
            self._views.in_force = after
        # The decision removes this peer.
        elif self._rank_in(after.view) is None:
            self._protocol.attachment.close()
            self._views.in_force = after
            time.sleep(_STEP_ASIDE_S)
        # The membership changes, and this peer stays.
        else:
            self._enter(after, admission, state, parts)

    def _enter(
        self,
        entering: Decision,
        admission: pb.Admission,
        state: ReplicatedState,
        parts: dict[str, float],
        make_terms: MakeTerms | None = None,
    ) -> Decision:
        view = entering.view
        self._views.begin(view, is_source=self._rank_in(view) in admission.sources)
        after = self._protocol.install(entering, admission, state, parts, make_terms)
        self._views.enter(after)
        # The members of the view are ready, even if their own removal from the page has not arrived.
        self._not_on_their_way(view.ids)
        return after

    def _not_on_their_way(self, peers: Sequence[int]) -> None:
        if self._joiners is not None:
            self._joiners.remove(peers)

    # ---- losing others -------------------------------------------------------------------------------------------

    def _enter_when_admitted(
        self,
        state: ReplicatedState,
        make_terms: Callable[[View, pb.Admission], MakeTerms | None],
        before: Decision | None,
        loss: NoticedLoss | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> BarrierResult:
        """Waits for a view that admits this peer, and enters it; repeats this if the view breaks before its first step.

        Args:
            make_terms: Returns the function that makes the settings of a view on its coordinator; ``None`` if the
                admission contains the settings.
            before: The decision that was in force; ``None`` for a joiner.
            loss: The loss to report first; ``None`` for a joiner.
            meanwhile: Called several times a second while a joiner waits.
        """
        client, peer = self._protocol.agent_client, self._protocol.settings.peer
        # The others wait for a peer that was in a view of this phase; a joiner may come too late.
        watch_phase = phase_watch(client, self.data_position.local.phase) if before is None else lambda: None

        def watch() -> None:
            watch_phase()
            meanwhile()

        while True:
            started, parts = time.monotonic(), dict[str, float]()
            if loss is None:
                admission = self._service.admission(after=self._views.newest, meanwhile=watch)
            else:
                admission = report_and_await_admission(self._protocol, loss, self._views, meanwhile=watch)
                parts["regroup"] = time.monotonic() - started
            entering, sources = to_decision(admission.decision), tuple(admission.sources)
            # Only a fault of the runtime admits a peer to a view that lacks this peer.
            if (rank := self._rank_in(entering.view)) is None:
                raise InternalError(f"peer {peer} was admitted to view {entering.view.version}, which lacks it")
            terms = make_terms(entering.view, admission) if rank == 0 else None
            try:
                # This peer knows that training has ended; the coordinator of the survivors may not know.
                if loss is not None and loss.terms.stopped:
                    forward_stop(self._protocol, entering.view)
                after = self._enter(entering, admission, state, parts, terms)
            # The new view has lost a member too, before its first step: the agent forms another view.
            except (PeerFailure, DeadlineExceeded) as error:
                loss = NoticedLoss(error, 0, Terms()) if loss is None else replace(loss, error=error)
                continue
            # A joiner, even one whose first view broke: it had no earlier view to recover from.
            if before is None or loss is None:
                return BarrierResult(None, after, peer, parts=parts, sources=sources)
            recovery = LossRecovery(dict(admission.recovery.lost), str(loss.error), sources[0])
            return BarrierResult(before, after, peer, parts=parts, recovery=recovery, sources=sources)

    def _rank_in(self, view: View) -> int | None:
        return view.rank_of(self._protocol.settings.peer)


def _request_text(request: Asked) -> str:
    """A rule's request as text, for the comparison with the requests of other peers."""
    match request.what:
        case Resize(size):
            return f"{request.by} asks for {size}"
        case Leave(peers):
            return f"{request.by} names the peers {', '.join(map(str, peers))}"
    return f"{request.by} asks to {in_words(request.what)}"
