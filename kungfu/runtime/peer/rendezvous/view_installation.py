"""The second rendezvous: the peers of a new view open their attachments, fetch the state, and compare it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kungfu.errors import KungfuError, PeerFailure
from kungfu.runtime.attachment.protocol import Attachment
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_failure, from_terms, to_failure, to_terms
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.peer.agent_client import AgentClient
from kungfu.runtime.peer.barrier_result import PeerState
from kungfu.runtime.peer.rendezvous.state_comparison import (
    from_gaps,
    rounding_event,
    transfer_context,
    variables_to_reconcile,
)
from kungfu.runtime.peer.service import PeerService, installation_key
from kungfu.runtime.settings import Settings
from kungfu.runtime.state import ReplicatedState, reconcile_variables, sync_state

__all__ = ["ViewEntry", "ViewInstaller"]


class DifferingVariables(list[int]):
    """The places of variables that have to be looked at before a view can begin."""


@dataclass(frozen=True)
class ViewEntry:
    """How a peer comes into a view.

    Args:
        peer_state: The view, this peer's rank in it, and its terms.
        rendezvous: The address at which the attachments meet, where they need one.
        sources: The ranks that hold the state from the start.
        survivor_terms: In a view of survivors, on its leader: gives their terms, once it has the state.
    """

    peer_state: PeerState
    rendezvous: str = ""
    sources: tuple[int, ...] = ()
    survivor_terms: Callable[[], Terms] | None = None

    @property
    def view(self) -> View:
        return self.peer_state.view

    @property
    def holds(self) -> bool:
        """Whether this peer holds the state from the start."""
        return self.peer_state.rank in self.sources


@dataclass(frozen=True)
class ViewInstaller:
    """What this peer enters a view with."""

    settings: Settings
    attachment: Attachment
    service: PeerService
    agent_client: AgentClient
    channels: rpc.ChannelPool

    def install(self, entry: ViewEntry, state: ReplicatedState, parts: dict[str, float]) -> PeerState:
        """Enters the view.

        Args:
            entry: The view, and who holds the state.
            state: The replicated state; fetched if this peer lacks it.
            parts: Gets the seconds of attaching and of the state, by name.

        Returns:
            Where this peer stands in the view, with the terms in force.

        Raises:
            PeerFailure: A member is gone.
            DeadlineExceeded: A member did not come; the error names it.
            InternalError: The states differ.
        """
        rank, started = entry.peer_state.rank, time.monotonic()
        assert rank is not None
        context = transfer_context(self.settings, entry.view, rank, sources=entry.sources)

        def attach() -> None:
            self._open_attachment(entry, rank)
            parts["attach"] = time.monotonic() - started

        abandoned = partial(self.abandon_reason, entry.view)
        with sync_state(state, context, server=self.service.state_server, attach=attach, abandoned=abandoned) as digest:
            parts["state/take and compare"] = time.monotonic() - started
            message = pb.InstallationReport(version=entry.view.version, rank=rank, digests=digest.values())
            terms = self._compare(entry, message, tuple(digest))
        # The view cannot begin yet: some variables are not the same on all peers.
        if isinstance(terms, DifferingVariables):
            terms = self._reconcile_and_compare(entry, message, terms, state)
        self.channels.keep(peer.address for peer in entry.view.peers)
        parts["state/agree"] = time.monotonic() - started - parts["state/take and compare"]
        parts["state"] = time.monotonic() - started - parts["attach"]
        return replace(entry.peer_state, terms=terms)

    def _compare(
        self, entry: ViewEntry, message: pb.InstallationReport, names: Sequence[str]
    ) -> Terms | DifferingVariables:
        if message.rank == 0:
            return self._confirm_as_leader(entry, message, names)
        return self._report_installed(entry, message)

    def _reconcile_and_compare(
        self, entry: ViewEntry, message: pb.InstallationReport, places: DifferingVariables, state: ReplicatedState
    ) -> Terms:
        """Some variables differed: they become rank 0's where that is rounding, and all compare once more."""
        context = transfer_context(self.settings, entry.view, message.rank, "values")
        abandoned = partial(self.abandon_reason, entry.view)
        with reconcile_variables(state, context, places, server=self.service.state_server, abandoned=abandoned) as gaps:
            digest = state.digest()
            again = pb.InstallationReport(version=message.version, rank=message.rank, round=1, gaps=from_gaps(gaps))
            again.digests.extend(digest.values())
            terms = self._compare(entry, again, tuple(digest))
        assert not isinstance(terms, DifferingVariables)
        return terms

    def abandon_reason(self, view: View) -> PeerFailure | None:
        """The failure that makes a wait for the peers of ``view`` pointless: one is gone, or stands still."""
        return self.service.failed_peers.failure_in(view) or self.silent_peers(view)

    def silent_peers(self, view: View) -> PeerFailure | None:
        """The peers of ``view`` that stand still as far as this one can see, ``None`` if none does."""
        silence = self.attachment.silent()
        if not silence.ranks or silence.view != view.version:  # ranks of another view are others
            return None
        text = f"rank {', rank '.join(map(str, silence.ranks))} shows no life"
        return PeerFailure(text, ranks=silence.ranks, peers=map(view.ids.__getitem__, silence.ranks), view=view.version)

    def _open_attachment(self, entry: ViewEntry, rank: int) -> None:
        self.attachment.open(
            rank=rank,
            size=entry.view.size,
            job=self.settings.job,
            view=entry.view.version,
            deadline_s=self.settings.deadlines.wait_s,
            secret=bytes.fromhex(self.settings.secret),
            addresses=[peer.address for peer in entry.view.peers],
            rendezvous=entry.rendezvous,
            abandoned=partial(self.abandon_reason, entry.view),
        )

    def _confirm_as_leader(
        self, entry: ViewEntry, message: pb.InstallationReport, names: Sequence[str]
    ) -> Terms | DifferingVariables:
        view = entry.view
        rendezvous = self.service.installations.at(installation_key(message))
        rendezvous.arrive(0, message)
        try:
            arrivals = rendezvous.everyone(
                view.size,
                deadline_s=self.settings.deadlines.wait_s,
                what=f"the start of view {view.version}",
                abandoned=partial(self.abandon_reason, view),
            )
            # Some variables are not the same on all peers: they are looked at before the view begins.
            if differing := variables_to_reconcile(names, arrivals, view):
                rendezvous.conclude(pb.InstallationReply(differing=differing))
                return DifferingVariables(differing)
            # They differed by rounding, and are rank 0's now.
            if (event := rounding_event(names, arrivals, view)) is not None:
                self.agent_client.record("events", event)
            terms = entry.peer_state.terms if entry.survivor_terms is None else entry.survivor_terms()
            # The agent hears it first: no peer may know of a view that its agent does not know of.
            self.agent_client.report_view_started(view)
        # A member did not come, is gone, or holds another state: all raise that.
        except KungfuError as error:
            rendezvous.conclude(pb.InstallationReply(failure=from_failure(error)))
            raise
        rendezvous.conclude(pb.InstallationReply(terms=None if entry.survivor_terms is None else from_terms(terms)))
        return terms

    def _report_installed(self, entry: ViewEntry, message: pb.InstallationReport) -> Terms | DifferingVariables:
        leader: Peer = entry.view.peers[0]
        what = f"rank 0 (peer {leader.id}), confirming view {message.version}"
        stub = PeerServiceStub(self.channels.to(leader.address))
        deadline_s = 2.5 * self.settings.deadlines.wait_s
        confirmation: pb.InstallationReply = rpc.call_unless(
            partial(self.abandon_reason, entry.view),
            stub.Install,
            message,
            deadline_s=deadline_s,
            what=what,
            peer=leader.id,
        )
        if confirmation.HasField("failure"):
            raise to_failure(confirmation.failure)  # as all raise it: what ends the leader is no loss of it
        if confirmation.differing:
            return DifferingVariables(confirmation.differing)
        return to_terms(confirmation.terms) if confirmation.HasField("terms") else entry.peer_state.terms
