"""The membership interface that training uses, for jobs of ``kungfu-run`` and for programs that run alone."""

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
from kungfu.runtime.peer.failed_peers import NoticedLoss
from kungfu.runtime.peer.job_progress import DataPositionClient, PastPhases
from kungfu.runtime.state.compare import Compared
from kungfu.runtime.state.replicated_state import ReplicatedState


class Membership(Protocol):
    """This peer's role in the views of its job; the default methods are for a program that runs alone.

    Only the training thread may call the methods.
    """

    past_phases: PastPhases  # the outcomes of the job's finished phases that are known to this peer
    data_position: DataPositionClient | None  # requests the other peers' position in the data; ``None`` without peers

    @property
    def view(self) -> View:
        """The view of this peer."""

    @property
    def has_joined(self) -> bool:
        """True once this peer has been in a view."""

    def lasting_failure(self) -> PeerFailure | None:
        """A failure of this peer's view that the all-reduce may not reveal; see ``FailedPeers.lasting_failure_in``."""
        return None

    def phases_over(self) -> int:
        """The number of finished phases of the job."""
        return 0

    def fetch_phase(self, number: int) -> bytes:
        """The outcome of a phase that ended before this peer joined; others may fetch the outcome from this peer."""

    def begin_phase(self, number: int, *, on_offer: Callable[[], None]) -> None:
        """Prepares this peer for a phase; ``on_offer`` is called when joiners or a request wait for a barrier."""
        return

    def join(
        self,
        state: ReplicatedState,
        *,
        description: Description = NOTHING_SAID,
        machine: str = "",
        opening_terms: Callable[[View, int], Terms] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> BarrierResult:
        """Reports that this peer is ready, and waits until it is in a view and has received the state of the others.

        After this call, SIGTERM is a notice of preemption, and the job removes this peer; before, SIGTERM ends the
        process.

        Args:
            state: The replicated state; it is overwritten, unless this peer begins the job as rank 0.
            description: This peer's program. A program that differs from that of the others is not admitted: the agent
                reports the difference and ends the process.
            machine: Threads and processor, as text; a difference between peers is only reported.
            opening_terms: Makes the settings of the first view of a phase; called on the view's coordinator only.
                The arguments are the view, and the size of the job including joiners on their way (0 without joiners).
            meanwhile: Called several times a second until this peer is admitted to a view.

        Returns:
            The view of this peer and the settings of the view; the result's ``before`` is ``None``.

        Raises:
            PhaseIsOver: The others finished the phase before they admitted this peer.
        """

    def host_joiners(self) -> int | None:
        """The number of joiners that are getting ready on this peer's host; ``None`` if unknown."""
        return 0

    def recover(self, state: ReplicatedState, loss: NoticedLoss, *, adjust: Adjust = as_decided) -> BarrierResult:
        """Recovers from the loss of other peers: disconnects, reports the loss, and enters the survivors' view.

        The survivors with the most steps hold the valid state, and the others receive it. If one survivor knows that
        training has ended, training ends on all: the lost coordinator may have reported the end to only some of them.

        Args:
            loss: This peer's knowledge of the loss, the steps that this peer has done, and the settings in force.
            adjust: Makes the settings of the new view if this peer has the lowest rank, and so is its coordinator.

        Returns:
            The new view and its settings, with a description of each loss.

        Raises:
            KungfuError: Any error other than the loss of a peer; further losses are reported and recovered from.
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
        """Holds a barrier together with all other peers of this view.

        Args:
            terms: The settings in force at this peer: batch sizes, change under way, ramp, end of training.
            requests: The requests of this peer's rules, which must be the same on all peers; on the coordinator, also
                external requests.
            shadows: The requests that shadow rules would have made since the last barrier.
            adjust: Makes the new settings from the decision about the membership; called only on the coordinator.
            speeds: The measured speeds of peers by id, as fractions of the median peer's speed; only the coordinator's
                values are used.
            compared: The compared part of the state: "all", or the part due at this barrier; the same on all peers.

        Returns:
            The result; on every peer, it contains the requests that the coordinator carried out.

        Raises:
            DeadlineExceeded: A peer did not arrive; the error names it.
            PeerFailure: A peer is gone.
            UsageError: The shared state differs.
        """

    def final_barrier(self, state: ReplicatedState, terms: Terms, *, shadows: Sequence[ShadowAsk] = ()) -> None:
        """Holds the last barrier of a job, once training is over; this barrier only compares the peers' states."""
        return

    def mark_state_complete(self) -> None:
        """Marks this peer's state as complete: the registered values, which travel after the variables, have arrived.

        Until then, this peer counts as lacking the state, unless it began the job or held the state when its view
        began.
        """
        return

    def pop_external_request(self) -> Asked | None:
        """The external request that the coordinator carries out at this barrier, if any; ``None`` on other ranks."""
        return None

    def record(self, stream: str, entry: RecordEntry) -> None:
        """Adds a line to a stream of the job's journal; see ``AgentClient.record``."""
        return

    def finish(self, summary: Mapping[str, Any], *, leaving: bool, phase: int = 0) -> None:
        """Reports the end of this peer's training, after which SIGTERM ends the process; see ``AgentClient.finish``."""
        return

    def withdraw(self) -> None:
        """Disconnects and stops the service, since the program is over: no other peer should wait for this peer."""
        return

    def close(self) -> None:
        """Leaves the job: closes this peer's connections and stops its service."""
        return


class StandaloneMembership(Membership):
    """The membership of a program without a job: a view of size 1 that no request changes, with immediate barriers.

    The view has version 0. The data loader prepares its first batch for version 0 too, so this batch fits the view.
    """

    view = View(0, (Peer(0, ""),))
    has_joined = True
    data_position = None

    def __init__(self) -> None:
        self.past_phases = PastPhases()

    def fetch_phase(self, number: int) -> bytes:
        """The stored outcome of a phase that ended before the checkpoint from which the run was resumed."""
        content = self.past_phases.content(number)
        if content is None:
            raise InternalError(f"phase {number} of a program that runs alone is not known")
        return content

    def join(self, state: ReplicatedState, **_: Any) -> BarrierResult:
        return BarrierResult(None, Decision(self.view, Terms()), 0, sources=(0,))

    def hold_barrier(
        self,
        state: ReplicatedState,
        terms: Terms,
        *,
        requests: Sequence[Asked] = (),
        adjust: Adjust = as_decided,
        **_: Any,
    ) -> BarrierResult:
        before = Decision(self.view, terms)
        decided = with_requests(before, merge(requests))
        return BarrierResult(before, replace(decided, terms=adjust(self.view, decided)), 0, sources=(0,))

    def recover(self, state: ReplicatedState, loss: NoticedLoss, *, adjust: Adjust = as_decided) -> BarrierResult:
        """Raises the error in ``loss``: there are no other peers, so the program itself caused the error."""
        raise loss.error
