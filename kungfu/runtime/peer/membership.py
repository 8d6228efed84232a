"""A peer's life in the job: ready, admitted, at barriers, gone. The executor of what ``decide`` decides.

A barrier has two rendezvous. To the first all peers of the view bring the digest of their state, and the coordinator,
which is rank 0, its decision; the answer is the view and the terms that come after (`BarrierProtocol.hold`). If the
view changed, those who stay and those who join open their attachments to each other, the joiners fetch the state, and
at the second rendezvous all digests are compared again (`BarrierProtocol.install`): no step runs on a state
that is not the same everywhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure
from kungfu.runtime.attachment.protocol import Attachment
from kungfu.runtime.core.barrier import Adjust, BarrierInput, BarrierResult, Decision, LossRecovery, as_decided, decide
from kungfu.runtime.core.cluster.events import PeerNoticed
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
from kungfu.runtime.peer.agent_client import AgentClient, RecordEntry
from kungfu.runtime.peer.data_position import DataPositionClient
from kungfu.runtime.peer.failed_peers import NoticedLoss
from kungfu.runtime.peer.past_phases import PastPhases, PhaseWatch, fetch_phase
from kungfu.runtime.peer.peer_service import PeerService, WriteTrace, cannot_trace
from kungfu.runtime.peer.regroup_protocol import LastView, RegroupProtocol
from kungfu.runtime.peer.rendezvous.barrier_protocol import BarrierProtocol, MakeTerms
from kungfu.runtime.peer.rendezvous.state_comparison import turn_of
from kungfu.runtime.preemption import on_preemption_signal
from kungfu.runtime.settings import Settings
from kungfu.runtime.state import Compared, ReplicatedState

# What a program does at its end would take the processor from those who plug together without it.
_STEP_ASIDE_S = 0.1


class JobMembership:
    """The membership of a peer that ``kungfu-run`` has launched; see `Membership`."""

    def __init__(
        self,
        settings: Settings,
        *,
        attachment: Attachment,
        on_offer: Callable[[], None],
        write_trace: WriteTrace = cannot_trace,
    ) -> None:
        self._settings, self._attachment = settings, attachment
        self._service = PeerService(
            deadline_s=settings.deadlines.wait_s,
            on_offer=on_offer,
            prepare_attachment=attachment.prepare,
            write_trace=write_trace,
        )
        self._server, self._agent_client = _started(settings, self._service)
        self._channels = rpc.ChannelPool(secret=settings.secret)
        means = settings, attachment, self._service, self._agent_client, self._channels
        position = self._service.position
        self.data_position = DataPositionClient(position, self._agent_client, self._channels, settings)
        self._regroup_protocol = RegroupProtocol(*means)
        self._barrier_protocol = BarrierProtocol(*means)
        self._in_force: Decision | None = None
        self._entering: View | None = None
        self._barriers = self._heard = 0
        self._holds = False
        self._phase = 1
        # A program that ends withdraws in one thread and closes in another; two that unplug Horovod wait for ever.
        self._unplugging = threading.Lock()
        self._ignore_preemption: Callable[[], None] | None = None
        self._joiners = JoinerPage.open(settings.joiner_page)

    @property
    def view(self) -> View:
        """The view that this peer is in."""
        return self._member().view

    def on_the_way(self) -> AbstractContextManager[None]:
        """The agent waits for this peer to get ready as long as the block continues."""
        return self._agent_client.on_the_way()

    def lasting_failure(self) -> PeerFailure | None:
        """See `Membership.lasting_failure`."""
        in_force, failed = self._in_force, self._service.failed_peers
        return None if in_force is None else failed.lasting_failure_in(in_force.view)

    # ---- phases --------------------------------------------------------------------------------------------------

    @property
    def past_phases(self) -> PastPhases:
        """The outcomes of the phases of the job that are over, as far as this peer knows."""
        return self._service.past_phases

    @property
    def has_joined(self) -> bool:
        """True if this peer has been in a view."""
        return self._in_force is not None

    def phases_over(self) -> int:
        """The number of phases of the job that are over."""
        return self._agent_client.phase_progress().over

    def fetch_phase(self, number: int) -> bytes:
        """The outcome of a phase that was over before this peer came; it is kept for others."""
        content = self.past_phases.content(number)
        if content is None:
            content = fetch_phase(number, self._settings, self._agent_client)
        return content

    def begin_phase(self, number: int, *, on_offer: Callable[[], None]) -> None:
        """This peer gets ready for a phase; ``on_offer`` posts in its graph from now on."""
        self._phase = number
        self._service.begin_phase(on_offer)
        self._service.position.begin_phase(number)

    # ---- entries and exits ---------------------------------------------------------------------------------------

    def join(
        self,
        state: ReplicatedState,
        *,
        description: Description = NOTHING_SAID,
        machine: str = "",
        opening_terms: Callable[[View, int], Terms] | None = None,
    ) -> BarrierResult:
        """See `Membership.join`; it waits for an admission.

        From then on SIGTERM is a notice: the job lets this peer go. Before, it ends the process, which has nothing yet.
        """
        with state.writable():  # the first use of anything is slow, and this one keeps nobody waiting
            state.digest()
        self._service.description = description
        # From here on it only waits, and takes no time from the peers beside it.
        self._not_on_their_way([self._settings.peer])
        self._agent_client.report_ready(Identity(description.digest, machine), phase=self._phase)
        self._attachment.close()

        def make_terms(view: View, admission: pb.Admission) -> MakeTerms | None:
            # Else the terms come with the admission.
            if opening_terms is None or not view.begins_phase:
                return None
            return partial(opening_terms, view, admission.target)

        result = self._enter_when_admitted(state, make_terms, None, None)
        self._ignore_preemption = on_preemption_signal(
            lambda: self._agent_client.report(PeerNoticed(self._settings.peer))
        )
        self._service.remind()
        return result

    def host_joiners(self) -> int | None:
        """The number of joiners that get ready on the host of this peer; ``None`` if unknown."""
        return None if self._joiners is None else self._joiners.count()

    def recover(self, state: ReplicatedState, loss: NoticedLoss, *, adjust: Adjust = as_decided) -> BarrierResult:
        """See `Membership.recover`."""
        before = replace(self._member(), terms=loss.terms)

        def make_terms(view: View, admission: pb.Admission) -> MakeTerms:
            return self._regroup_protocol.survivor_terms(before, view, admission.recovery.target, adjust)

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
        """See `Membership.hold_barrier`."""
        before = self._member()
        before = replace(before, terms=terms)
        started, parts = time.monotonic(), dict[str, float]()
        arrival, names, digest = self._next_arrival(before, state, requests, shadows, compared)
        parts["barrier/digest"] = time.monotonic() - started
        offer = self._service.take_offer() if arrival.rank == 0 else None
        made: Decision | None = None

        def decision() -> Decision:
            nonlocal made
            made = decide(
                BarrierInput(before.view, terms, self._settings.limits, requests, offer, speeds), adjust=adjust
            )
            return made

        admission = self._barrier_protocol.hold(before.view, arrival, decision, names=names, digest=digest, state=state)
        # The coordinator's own requests have whole numbers with all their digits, which messages do not.
        after = made or to_decision(admission.decision)
        parts["barrier"] = time.monotonic() - started
        parts["barrier/meeting"] = parts["barrier"] - parts["barrier/digest"]
        self._apply(before, after, admission, state, parts)
        return BarrierResult(
            before, after, self._settings.peer, offer=offer, parts=parts, sources=tuple(admission.sources)
        )

    def final_barrier(self, state: ReplicatedState, terms: Terms, *, shadows: Sequence[ShadowAsk] = ()) -> None:
        """The last barrier of a job whose training is over on all peers: it only compares their states."""
        before = replace(self._member(), terms=terms)
        arrival, names, digest = self._next_arrival(before, state, (), shadows, "part")
        self._barrier_protocol.hold(
            before.view, arrival, lambda: Decision(before.view, terms), names=names, digest=digest, state=state
        )

    def mark_state_complete(self) -> None:
        """See `Membership.mark_state_complete`."""
        self._holds = True

    def take_external_request(self) -> Asked | None:
        """The coordinator's: what somebody outside wants to have carried out at this barrier, if anything."""
        return self._service.take_external_request() if self._rank_in(self._member().view) == 0 else None

    def record(self, stream: str, entry: RecordEntry) -> None:
        """One more line of a stream of the job's journal; see ``AgentClient.record``."""
        self._agent_client.record(stream, entry)

    def finish(self, summary: Mapping[str, Any], *, leaving: bool, phase: int = 0) -> None:
        """This peer's training is over, and SIGTERM ends it as it does any program; see ``AgentClient.finish``."""
        # This peer was in a view, so that SIGTERM was a notice.
        if self._ignore_preemption is not None:
            self._ignore_preemption()
        self._agent_client.finish(summary, leaving=leaving, phase=phase)

    def withdraw(self) -> None:
        """This peer's program is over: nobody should wait for it in a message, or ask it for anything."""
        with self._unplugging:
            self._attachment.leave()
        self._server.stop()

    def close(self) -> None:
        """Leaves the job: unplugs, stops the service."""
        with self._unplugging:
            self._attachment.close()
        self._channels.keep([])
        self._agent_client.close()
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
    ) -> tuple[pb.BarrierArrival, tuple[str, ...], Callable[[], dict[str, int]]]:
        """This peer's arrival at its next barrier, the names of its variables, and a function to compare again."""
        number, self._barriers = self._barriers, self._barriers + 1
        # The peers agree on what rules ask for; somebody outside, and a program that stops, asks rank 0 alone.
        of_rules = merge(one for one in requests if changes_membership(one) and not one.is_outside)
        text = " and ".join(_request_text(one) for one in of_rules if not one.superseded_by)
        version, rank = before.view.version, self._rank_in(before.view) or 0
        digest = state.digest if compared == "all" else partial(state.sampled_digest, turn_of(version, number))
        found = digest()
        arrival = pb.BarrierArrival(version=version, number=number, rank=rank, requested=text, digests=found.values())
        arrival.shadows.extend(map(from_shadow, shadows))
        return arrival, tuple(found), digest

    def _member(self) -> Decision:
        if self._in_force is None or self._rank_in(self._in_force.view) is None:
            raise InternalError("a barrier was held by a peer that is in no view")
        return self._in_force

    def _apply(
        self,
        before: Decision,
        after: Decision,
        admission: pb.Admission,
        state: ReplicatedState,
        parts: dict[str, float],
    ) -> None:
        # The view stays; its terms may be others.
        if after.view.version == before.view.version:
            self._in_force = after
        # The view lets this peer go.
        elif self._rank_in(after.view) is None:
            self._attachment.close()
            self._in_force = after
            time.sleep(_STEP_ASIDE_S)
        # The membership changes around this peer.
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
        view = self._entering = entering.view
        self._heard = max(self._heard, view.version)
        # A state that is being replaced is neither the old nor the new one.
        self._holds = self._holds and self._rank_in(view) in admission.sources
        self._in_force = after = self._barrier_protocol.install(entering, admission, state, parts, make_terms)
        # A peer that begins the job holds as much as rank 0, for nobody has trained yet. One that takes the state over
        # lacks the registered values, which come before the next step: see `mark_state_complete`.
        self._holds = self._holds or view.begins
        self._barriers, self._entering = 0, None
        # They are in the view, whatever became of their own word that they are ready.
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
    ) -> BarrierResult:
        """Waits for a view that admits this peer, and enters it; again if that breaks before it trains.

        Args:
            state: The replicated state.
            make_terms: Gives what makes the terms of a view, if this peer leads it.
            before: What was in force; ``None`` for a joiner.
            loss: The report to make first; ``None`` for a joiner.
        """
        # Whoever was in a view of this phase is awaited by the others; a joiner may come too late.
        watch = PhaseWatch(self._agent_client, self._phase).look if before is None else _nothing
        while True:
            started, parts = time.monotonic(), dict[str, float]()
            if loss is None:
                admission = self._regroup_protocol.await_admission(after=self._heard, meanwhile=watch)
            else:
                admission = self._regroup_protocol.report_and_await_admission(loss, self._last_view(), meanwhile=watch)
                parts["regroup"] = time.monotonic() - started
            entering, sources = to_decision(admission.decision), tuple(admission.sources)
            # Only a fault of the runtime admits a peer to a view without it.
            if (rank := self._rank_in(entering.view)) is None:
                peer, version = self._settings.peer, entering.view.version
                raise InternalError(f"peer {peer} was admitted to view {version}, which lacks it")
            terms = make_terms(entering.view, admission) if rank == 0 else None
            try:
                # This peer knows that training has ended, and whoever leads the survivors may not.
                if loss is not None and loss.terms.stopped:
                    self._regroup_protocol.forward_stop(entering.view)
                after = self._enter(entering, admission, state, parts, terms)
            # This view has lost a member too, before it trained: the agent forms another one.
            except (PeerFailure, DeadlineExceeded) as error:
                loss = NoticedLoss(error, 0, Terms()) if loss is None else replace(loss, error=error)
                continue
            # A joiner, whose first view broke perhaps: it had nothing to lose.
            if before is None or loss is None:
                return BarrierResult(None, after, self._settings.peer, parts=parts, sources=sources)
            recovery = LossRecovery(dict(admission.recovery.lost), str(loss.error), sources[0])
            return BarrierResult(before, after, self._settings.peer, parts=parts, recovery=recovery, sources=sources)

    def _last_view(self) -> LastView:
        in_force = None if self._in_force is None else self._in_force.view
        return LastView(self._entering or in_force, self._heard, self._holds)

    def _rank_in(self, view: View) -> int | None:
        return view.rank_of(self._settings.peer)


def _nothing() -> None:
    """There is nothing to look for meanwhile."""


def _request_text(request: Asked) -> str:
    """The request of a rule as text, for the comparison with the rules of the other peers."""
    match request.what:
        case Resize(size):
            return f"{request.by} asks for {size}"
        case Leave(peers):
            return f"{request.by} names the peers {', '.join(map(str, peers))}"
    return f"{request.by} asks to {in_words(request.what)}"


def _started(settings: Settings, service: PeerService) -> tuple[rpc.Server, AgentClient]:
    server = rpc.serve(
        (add_PeerServiceServicer_to_server, service),
        host=settings.host,
        secret=settings.secret,
        threads=8 + 2 * settings.limits.maximum,
    )
    return server, AgentClient(settings, Peer(settings.peer, server.address))
