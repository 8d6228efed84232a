"""The second rendezvous: the peers of a new view open their attachments, fetch the state, and compare it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import from_terms, to_terms
from kungfu.runtime.peer.barrier_result import PeerState
from kungfu.runtime.peer.rendezvous.meeting import Meeting
from kungfu.runtime.peer.rendezvous.state_comparison import rounding_event
from kungfu.runtime.state import ReplicatedState, sync_state

__all__ = ["MakeTerms", "ViewInstaller"]

# Makes the terms of a view of which its rank 0 has to make them: one of survivors, or the first one of a phase.
MakeTerms = Callable[[], Terms]


@dataclass(frozen=True)
class ViewInstaller(Meeting):
    """The second rendezvous of a barrier, as a peer takes part in it."""

    def install(
        self,
        entering: PeerState,
        admission: pb.Admission,
        state: ReplicatedState,
        parts: dict[str, float],
        make_terms: MakeTerms | None = None,
    ) -> PeerState:
        """Enters the view.

        Args:
            entering: The view, and this peer's rank in it.
            admission: To that view: where the attachments meet, and which ranks hold the state from the start.
            state: The replicated state; fetched if this peer lacks it.
            parts: Gets the seconds of attaching and of the state, by name.
            make_terms: On rank 0, where it makes the terms: called once it has the state.

        Returns:
            Where this peer stands in the view, with the terms in force.

        Raises:
            PeerFailure: A member is gone.
            DeadlineExceeded: A member did not come; the error names it.
            InternalError: The states differ.
        """
        view, rank, started = entering.view, entering.rank, time.monotonic()
        assert rank is not None
        context = self.transfer(view, rank, sources=admission.sources)

        def attach() -> None:
            self._open_attachment(view, rank, admission.attachment_address)
            parts["attach"] = time.monotonic() - started

        def conclude(arrivals: Mapping[int, pb.BarrierArrival]) -> pb.BarrierReply:
            # Some variables differed by rounding, and are rank 0's now.
            if (event := rounding_event(names, arrivals, view)) is not None:
                self.agent_client.record("events", event)
            made = pb.Admission() if make_terms is None else pb.Admission(terms=from_terms(make_terms()))
            # The agent hears it first: no peer may know of a view that its agent does not know of.
            self.agent_client.report_view_started(view)
            return pb.BarrierReply(admission=made)

        abandoned = partial(self.abandon_reason, view)
        with sync_state(state, context, server=self.service.state_server, attach=attach, abandoned=abandoned) as digest:
            parts["state/take and compare"], names = time.monotonic() - started, tuple(digest)
            arrival = pb.BarrierArrival(version=view.version, rank=rank, digests=digest.values(), begins_view=True)
            reply = self.arrive(view, arrival, conclude, names=names)
        # The view cannot begin yet: some variables are not the same on all peers.
        if reply.differing:
            reply = self.arrive_again(
                view, arrival, reply.differing, conclude, names=names, digest=state.digest, state=state
            )
        self.channels.keep(peer.address for peer in view.peers)
        parts["state/agree"] = time.monotonic() - started - parts["state/take and compare"]
        parts["state"] = time.monotonic() - started - parts["attach"]
        # Else the terms came with the admission.
        made = reply.admission.HasField("terms")
        return replace(entering, terms=to_terms(reply.admission.terms)) if made else entering

    def _open_attachment(self, view: View, rank: int, address: str) -> None:
        self.attachment.open(
            rank=rank,
            size=view.size,
            job=self.settings.job,
            view=view.version,
            deadline_s=self.settings.deadlines.wait_s,
            secret=bytes.fromhex(self.settings.secret),
            addresses=[peer.address for peer in view.peers],
            rendezvous=address,
            abandoned=partial(self.abandon_reason, view),
        )
