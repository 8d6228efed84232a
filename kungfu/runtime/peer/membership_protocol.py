"""The interface of a job to training, whether ``kungfu-run`` has launched it or a program runs alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from kungfu.errors import InternalError, PeerFailure
from kungfu.runtime.core.barrier import Adjust, BarrierResult, Decision, as_decided, with_requests
from kungfu.runtime.core.program_identity import NOTHING_SAID, Description
from kungfu.runtime.core.request import Asked, merge
from kungfu.runtime.core.shadow import ShadowAsk
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import NO_SPEEDS, Peer, View
from kungfu.runtime.peer.agent_client import RecordEntry
from kungfu.runtime.peer.data_position import DataPositionClient
from kungfu.runtime.peer.failed_peers import NoticedLoss
from kungfu.runtime.peer.past_phases import PastPhases
from kungfu.runtime.state.compare import Compared
from kungfu.runtime.state.replicated_state import ReplicatedState


class Membership(Protocol):
    """This peer's part in the views of its job. One thread at a time calls it: the one that trains."""

    @property
    def view(self) -> View:
        """The view that this peer is in."""

    @property
    def past_phases(self) -> PastPhases:
        """The outcomes of the phases of the job that are over, as far as this peer knows."""

    @property
    def has_joined(self) -> bool:
        """True if this peer has been in a view."""

    @property
    def data_position(self) -> DataPositionClient | None:
        """Asks where the others are in the data; ``None`` if there are no others."""

    def lasting_failure(self) -> PeerFailure | None:
        """Why the view of this peer does not continue though its messages may: see
        ``FailedPeers.lasting_failure_in``."""

    def phases_over(self) -> int:
        """The number of phases of the job that are over."""

    def fetch_phase(self, number: int) -> bytes:
        """The outcome of a phase that was over before this peer came; it is kept for others."""

    def begin_phase(self, number: int, *, on_offer: Callable[[], None]) -> None:
        """This peer gets ready for a phase; ``on_offer`` posts in its graph from now on."""

    def join(
        self,
        state: ReplicatedState,
        *,
        description: Description = NOTHING_SAID,
        machine: str = "",
        opening_terms: Callable[[View, int], Terms] | None = None,
    ) -> BarrierResult:
        """Says that this peer is ready, and waits until a view admits it and its state is that of the others.

        From then on SIGTERM is a notice: the job lets this peer go. Before, it ends the process, which has nothing yet.

        Args:
            state: The replicated state; it is overwritten, unless this peer begins the job as rank 0.
            description: This peer's program. One that differs from that of the others is not admitted: the agent says
                what differs, and ends it.
            machine: Threads and processor, in words; a difference is reported, and changes nothing.
            opening_terms: Gives the terms of the first view of a phase if this peer is its coordinator, from that view
                and the size of the job with those on their way, 0 if none are.

        Returns:
            The view that this peer is in, and its terms; nothing stood before it.

        Raises:
            PhaseIsOver: The others have come to the end of the phase before they admitted this peer.
        """

    def host_joiners(self) -> int | None:
        """The number of joiners that are getting ready on the host of this peer; ``None`` if it is not known."""

    def recover(self, state: ReplicatedState, loss: NoticedLoss, *, adjust: Adjust = as_decided) -> BarrierResult:
        """This peer lost others: unplugs itself, reports, and enters the view of the survivors.

        The survivors with the most steps hold the state that counts, and the others receive it. If one of them knows
        that training has ended, it has ended for all: the lost coordinator may have reported it to some only.

        Args:
            state: The replicated state.
            loss: The knowledge of this peer of the loss, its steps done, and the terms in force.
            adjust: Makes the terms of the new view where this peer has the lowest rank, and so is its coordinator.

        Returns:
            The new view and its terms, with how the others were lost.

        Raises:
            KungfuError: Anything that is not the loss of a peer; further losses are reported, and recovered from.
        """

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
        """Holds the barrier that the peers of this view agreed on.

        Args:
            state: The replicated state, which must be the same on all peers.
            terms: The terms in force at this peer.
            requests: The requests of its rules, which must be the same on all peers; the coordinator's also have those
                from outside.
            shadows: The requests that rules in the shadow would have made since the last barrier.
            adjust: Makes the coordinator's terms of what is decided about the membership.
            speeds: The speeds of peers by id, as fractions of the median peer's, if they are measured; the
                coordinator's count.
            compared: All of the state, or its part whose turn it is; the same on all peers.

        Returns:
            The result, with the requests that the coordinator carried out, on every peer.

        Raises:
            DeadlineExceeded: A peer did not come; the error names it.
            PeerFailure: A peer is gone.
            UsageError: The shared state differs.
        """

    def final_barrier(self, state: ReplicatedState, terms: Terms, *, shadows: Sequence[ShadowAsk] = ()) -> None:
        """The last barrier of a job whose training is over on all peers: it only compares their states."""

    def mark_state_complete(self) -> None:
        """From now on this peer holds the state: it also has the registered values, which travel after the variables.

        Before, it counts as a peer without state, unless it began the job or held the state when its view began.
        """

    def pop_external_request(self) -> Asked | None:
        """The request from outside that the coordinator carries out at this barrier, if there is one."""

    def record(self, stream: str, entry: RecordEntry) -> None:
        """One more line of a stream of the job's journal; see ``AgentClient.record``."""

    def finish(self, summary: Mapping[str, Any], *, leaving: bool, phase: int = 0) -> None:
        """This peer's training is over, and SIGTERM ends it as it does any program; see ``AgentClient.finish``."""

    def withdraw(self) -> None:
        """This peer's program is over: no peer should wait for it in a message, or ask it for anything."""

    def close(self) -> None:
        """Leaves the job: unplugs, stops the service."""


class StandaloneMembership:
    """Stays in a view of size 1: every barrier is held at once, and no request changes it.

    It is view 0, the one for which the loader cuts its first batch, so that no batch is ever stale.
    """

    def __init__(self) -> None:
        self.view = View(0, (Peer(0, ""),))
        self.past_phases = PastPhases()
        self.has_joined = True
        self.data_position: DataPositionClient | None = None

    def phases_over(self) -> int:
        """No phase was over before this program began."""
        return 0

    def fetch_phase(self, number: int) -> bytes:
        """The result of a phase after which a resumed run continues."""
        content = self.past_phases.content(number)
        if content is None:
            raise InternalError(f"phase {number} of a program that runs alone is not known")
        return content

    def begin_phase(self, number: int, *, on_offer: Callable[[], None]) -> None:
        """Does nothing: there are no offers."""

    def join(
        self,
        state: ReplicatedState,
        *,
        description: Description = NOTHING_SAID,
        machine: str = "",
        opening_terms: Callable[[View, int], Terms] | None = None,
    ) -> BarrierResult:
        return BarrierResult(None, Decision(self.view, Terms()), 0, sources=(0,))

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
        before = Decision(self.view, terms)
        decided = with_requests(before, merge(requests))
        return BarrierResult(before, replace(decided, terms=adjust(self.view, decided)), 0, sources=(0,))

    def recover(self, state: ReplicatedState, loss: NoticedLoss, *, adjust: Adjust = as_decided) -> BarrierResult:
        """There is no other peer to be lost: the error is the program's."""
        raise loss.error

    def final_barrier(self, state: ReplicatedState, terms: Terms, *, shadows: Sequence[ShadowAsk] = ()) -> None:
        """Does nothing: no other peer has to agree that training is over."""

    def host_joiners(self) -> int | None:
        """Returns 0: no peer joins."""
        return 0

    def lasting_failure(self) -> PeerFailure | None:
        """Returns nothing: no other peer could be lost."""
        return None

    def mark_state_complete(self) -> None:
        """Does nothing: no peer asks for the state."""

    def pop_external_request(self) -> Asked | None:
        """Returns nothing: there is no connection to a job."""
        return None

    def record(self, stream: str, entry: RecordEntry) -> None:
        """Does nothing: a program that runs alone has no journal."""

    def finish(self, summary: Mapping[str, Any], *, leaving: bool, phase: int = 0) -> None:
        """Does nothing: no peer waits for it."""

    def withdraw(self) -> None:
        """Does nothing: no peer waits for it."""

    def close(self) -> None:
        """Nothing is open."""
