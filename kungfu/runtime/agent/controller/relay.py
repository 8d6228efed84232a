"""What the agent says to peers. Each message goes out from a thread of its own: no peer can hold up the agent.

A message that was not heard is told again, until it is, or until nothing depends on it any more: its peer has ended,
its view is over, or a newer message says what counts now. Who hears it twice knows it by its number, by the version of
its view, or as a fact that it knows.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kungfu.errors import KungfuError
from kungfu.runtime.core.cluster import Announce, Cluster, Compare, Form, Lead, Offer, Tell
from kungfu.runtime.core.identity import Description, difference
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_demand, from_prepared, from_terms, from_view
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.settings import Settings

__all__ = ["Relay", "Unformed", "Unheard"]

_SOON_S, _LATEST_S = 0.1, 1.0  # between two tellings
_TERM_BITS = 32  # of a number are left to count the messages of one head

Over = Callable[[], bool]


def _in_wire_form(command: Offer | Tell) -> tuple[str, Any, str]:
    """The method that takes it, the message, and of what kind of messages only the newest one counts."""
    if isinstance(command, Offer):
        return "Offer", from_prepared(command.prepared), "offer"
    demand = command.demand
    # One request is under way at a time; what the agent demands of itself has no id.
    return "Carry", from_demand(demand), "request" if demand.id else f"{demand.kind} {demand.peers}"


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Unformed:
    """The first view could not be formed."""

    error: KungfuError


@dataclass(frozen=True)
class Unheard:
    """A peer did not take a message, which is told again; what the peer is like will be seen by other means."""

    peer: int
    error: str


class Relay:
    """Sends the cluster's commands to peers; ``put`` takes what came of them, ``known`` gives what is known now.

    Numbers grow from message to message, and from head to head by their ``term``.
    """

    def __init__(
        self, settings: Settings, put: Callable[[Any], None], *, known: Callable[[], Cluster], term: int
    ) -> None:
        self._settings, self._put, self._known, self._term = settings, put, known, term
        self._numbers = itertools.count((term << _TERM_BITS) + 1)
        self._newest: dict[str, int] = {}  # the number of the newest message that takes the place of its like

    def form(self, command: Form) -> None:
        """Admits everybody to the first view; the state is rank 0's."""

        def perform() -> None:
            view = command.view
            try:
                admission = self._admission(view, (0,), self._settings.deadlines.wait_s)
                for peer in view.peers:
                    self._ask(peer, "Admit", admission, self._settings.deadlines.wait_s)
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
        return Description.from_bytes(self._ask(peer, "Describe", pb.Inquiry(), self._settings.deadlines.wait_s).parts)

    def lead(self, command: Lead, *, unled: Callable[[View], Any]) -> None:
        """Admits the survivors; ``unled`` makes the event that says that nobody could be: the first has ended, or did
        not answer for twice the heartbeat. Where nobody else waits, it is given the deadline of every wait."""
        view, deadlines = command.view, self._settings.deadlines
        patience_s = deadlines.wait_s if view.size == 1 else min(deadlines.wait_s, 2 * deadlines.heartbeat_s)

        def perform() -> None:
            until = time.monotonic() + patience_s

            def over() -> bool:
                return self._is_over(command, view.peers[0]) or time.monotonic() > until

            ask = partial(self._admission, view, command.sources, self._attempt_s, over)
            admission = self._persist(ask, view.peers[0], over)
            if admission is None:
                self._put(unled(view))
                return
            admission.survival.target = command.target
            admission.survival.lost.update(command.lost)
            for peer in view.peers:
                self._tell(peer, "Admit", admission, over=partial(self._is_over, command, peer))

        self._begin(perform)

    def announce(self, command: Announce, peers: Iterable[Peer]) -> None:
        """Tells every peer of a breach, all at once."""
        breach, then = pb.Breach(peer=command.peer, version=command.version, how=command.how), self._version()

        def over(peer: Peer) -> bool:
            return self._version() > then or self._has_ended(peer)

        for peer in peers:
            self._tell(peer, "Announce", breach, over=partial(over, peer))

    def to_leader(self, command: Offer | Tell) -> None:
        """Says to rank 0 what it is to hold a barrier for.

        When another one leads, the agent offers anew, and demands anew what is not as it was asked for. Of two demands
        of people the newer one counts, and of two offers.
        """
        leader, number = command.view.peers[0], next(self._numbers)
        method, message, like = _in_wire_form(command)
        message.number = self._newest[like] = number

        def over() -> bool:
            return self._newest[like] > number or self._leader() != leader or self._has_ended(leader)

        self._tell(leader, method, message, over=over)

    # ---- what is known by now ----------------------------------------------------------------------------------------

    def _has_ended(self, peer: Peer) -> bool:
        return peer.id not in self._known().alive

    def _version(self) -> int:
        view = self._known().view
        return view.version if view else 0

    def _leader(self) -> Peer | None:
        view = self._known().view
        return view.peers[0] if view else None

    def _is_over(self, command: Lead, peer: Peer) -> bool:
        """Whether nobody waits for this peer in the view of survivors: it is in force, or another one is to be."""
        regrouping = self._known().regrouping
        return regrouping is None or regrouping.formed != command.view or self._has_ended(peer)

    # ---- messages ----------------------------------------------------------------------------------------------------

    @property
    def _attempt_s(self) -> float:
        """For how long one telling is waited for: a peer that stands still longer is not heard of by waiting."""
        return min(self._settings.deadlines.wait_s, self._settings.deadlines.heartbeat_s)

    def _admission(self, view: View, sources: Sequence[int], within_s: float, over: Over = _never) -> pb.Admission:
        message = from_view(view)
        rendezvous = self._ask(view.peers[0], "PrepareAttachment", message, within_s, over).address
        return pb.Admission(
            view=message, terms=from_terms(Terms()), rendezvous=rendezvous, sources=sources, term=self._term
        )

    def _tell(self, peer: Peer, method: str, message: Any, *, over: Over) -> None:
        ask = partial(self._ask, peer, method, message, self._attempt_s, over)
        self._begin(lambda: self._persist(ask, peer, over))

    def _persist(self, ask: Callable[[], Any], peer: Peer, over: Over) -> Any:
        """Asks until it is answered or over; ``None`` where it is over. The first failure is told."""
        pause_s, failed = _SOON_S, False
        while not over():
            try:
                return ask()
            except KungfuError as error:
                if not failed and not over():
                    self._put(Unheard(peer.id, str(error)))
                failed = True
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LATEST_S)
        return None

    def _ask(self, peer: Peer, method: str, message: Any, within_s: float, over: Over = _never) -> Any:
        def in_vain() -> str | None:
            if self._has_ended(peer):
                return "its process has ended"
            return "nothing depends on it any more" if over() else None

        with rpc.connect(peer.address, secret=self._settings.secret) as channel:
            call, what = getattr(PeerServiceStub(channel), method), f"peer {peer.id} to take {method}"
            return rpc.call_unless(in_vain, call, message, deadline_s=within_s, what=what)

    def _begin(self, perform: Callable[[], None]) -> None:
        threading.Thread(target=perform, daemon=True, name="kungfu-relay").start()
