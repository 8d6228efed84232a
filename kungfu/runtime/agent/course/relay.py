"""What the agent says to peers. Each message goes out from a thread of its own: no peer can hold up the agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kungfu.errors import KungfuError
from kungfu.runtime.deciding.cluster import Announce, Compare, Form, Lead, Offer, Tell
from kungfu.runtime.deciding.decide import Terms
from kungfu.runtime.deciding.identity import Description, difference
from kungfu.runtime.deciding.view import Peer, View
from kungfu.runtime.settings import Settings
from kungfu.runtime.wire import messages_pb2 as pb
from kungfu.runtime.wire import rpc
from kungfu.runtime.wire.convert import from_demand, from_prepared, from_terms, from_view
from kungfu.runtime.wire.messages_pb2_grpc import PeerServiceStub

__all__ = ["Relay", "Unformed", "Unheard"]


@dataclass(frozen=True)
class Unformed:
    """The first view could not be formed."""

    error: KungfuError


@dataclass(frozen=True)
class Unheard:
    """A peer did not take a message; what it is like will be seen by other means."""

    peer: int
    error: str


class Relay:
    """Sends the cluster's commands to peers; ``put`` takes what came of them.

    ``gone`` says how a peer ended, ``None`` while it runs: nobody waits for one that did. ``term`` is that of the head.
    """

    def __init__(
        self, settings: Settings, put: Callable[[Any], None], *, gone: Callable[[int], str | None], term: int
    ) -> None:
        self._settings, self._put, self._gone, self._term = settings, put, gone, term

    def form(self, command: Form) -> None:
        """Admits everybody to the first view; the state is rank 0's."""

        def perform() -> None:
            view = command.view
            try:
                admission = self._admission(view, sources=(0,))
                for peer in view.peers:
                    self._ask(peer, "Admit", admission)
            except KungfuError as error:
                self._put(Unformed(error))

        self._begin(perform)

    def compare(self, command: Compare, *, differs: Callable[[int, str], Any]) -> None:
        """Finds out in what a peer's program differs; ``differs`` makes the event that says so."""
        other = command.other

        def perform() -> None:
            try:
                reference, its = self._first_described(command.references)
                how = difference(its, self._described(other), names=(f"peer {reference.id}", f"peer {other.id}"))
            except KungfuError as error:
                how = f"in what could not be found out ({error})"
            self._put(differs(other.id, how))

        self._begin(perform)

    def _first_described(self, peers: Sequence[Peer]) -> tuple[Peer, Description]:
        """The program of the job, by one of those who run it; any may be lost meanwhile."""
        for peer in peers[:-1]:
            try:
                return peer, self._described(peer)
            except KungfuError:
                continue
        return peers[-1], self._described(peers[-1])

    def _described(self, peer: Peer) -> Description:
        return Description.from_bytes(self._ask(peer, "Describe", pb.Inquiry()).parts)

    def lead(self, command: Lead, *, unled: Callable[[View], Any]) -> None:
        """Admits the survivors; ``unled`` makes the event that says that nobody could be, since the first is gone."""

        def perform() -> None:
            try:
                admission = self._admission(command.view, sources=command.sources)
            except KungfuError:
                self._put(unled(command.view))
                return
            admission.survival.target = command.target
            admission.survival.lost.update(command.lost)
            for peer in command.view.peers:
                self._try(peer, "Admit", admission)

        self._begin(perform)

    def announce(self, command: Announce, peers: Iterable[Peer]) -> None:
        """Tells every peer of a breach, all at once."""
        breach = pb.Breach(peer=command.peer, version=command.version, how=command.how)
        for peer in peers:
            self._begin(partial(self._try, peer, "Announce", breach))

    def to_leader(self, command: Offer | Tell) -> None:
        """Says to rank 0 what it is to hold a barrier for."""
        leader = command.view.peers[0]
        if isinstance(command, Offer):
            self._begin(lambda: self._try(leader, "Offer", from_prepared(command.prepared)))
        else:
            self._begin(lambda: self._try(leader, "Carry", from_demand(command.demand)))

    def _admission(self, view: View, *, sources: Sequence[int]) -> pb.Admission:
        message = from_view(view)
        rendezvous = self._ask(view.peers[0], "PrepareAttachment", message).address
        return pb.Admission(
            view=message, terms=from_terms(Terms()), rendezvous=rendezvous, sources=sources, term=self._term
        )

    def _try(self, peer: Peer, method: str, message: Any) -> None:
        try:
            self._ask(peer, method, message)
        except KungfuError as error:
            self._put(Unheard(peer.id, str(error)))

    def _ask(self, peer: Peer, method: str, message: Any) -> Any:
        with rpc.connect(peer.address, secret=self._settings.secret) as channel:
            ask, gone = getattr(PeerServiceStub(channel), method), partial(self._gone, peer.id)
            what, deadline_s = f"peer {peer.id} to take {method}", self._settings.deadlines.wait_s
            return rpc.call_unless(gone, ask, message, deadline_s=deadline_s, what=what)

    def _begin(self, perform: Callable[[], None]) -> None:
        threading.Thread(target=perform, daemon=True, name="kungfu-relay").start()
