"""Sends the leader's messages to peers, each from a thread of its own: no peer can hold up the agent.

A message that was not answered is repeated until it is, or until nothing depends on it any more: its peer has ended,
its view is over, or a newer message takes its place. The peer recognizes a repeated message by its number, by the
version of its view, or as a fact that it knows.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kungfu.errors import KungfuError, PeerFailure
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.cluster.events import (
    AdmitFirstView,
    AdmitPhase,
    AdmitSurvivors,
    AnnounceFailure,
    ComparePrograms,
    CoordinatorUnreachable,
    ProgramDiffers,
)
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.program_identity import Description, difference
from kungfu.runtime.core.request import AGENT, Asked, Leave
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_asked, from_decision, from_offer, from_view, to_description
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.settings import Settings

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0  # between two attempts
_TERM_BITS = 32  # of a number are left to count the messages of one leader

IsOver = Callable[[], bool]


def _in_wire_form(command: JoinerOffer | Asked) -> tuple[str, Any, str]:
    """The method that takes the command, the message, and its kind: of each kind only the newest message counts."""
    if isinstance(command, JoinerOffer):
        return "OfferJoiners", from_offer(command), "offer"
    # One request of people and schedulers is under way at a time.
    peers = command.what.peers if isinstance(command.what, Leave) else ()
    kind = "request" if command.id != AGENT else f"{type(command.what).__name__} {peers}"
    return "ForwardRequest", from_asked(command), kind


def _never() -> bool:
    return False


@dataclass(frozen=True)
class FormationFailed:
    """The first view could not be formed."""

    error: KungfuError


@dataclass(frozen=True)
class NotifyFailed:
    """A peer did not take a message, which is repeated; other events say what became of the peer."""

    peer: int
    error: str


class PeerClient:
    """Sends the cluster's commands to peers. Numbers grow with each message, and with the leader's term.

    Args:
        settings: The job's.
        put: Takes the events that come of the messages.
        known: Gives the cluster as it is known now.
        term: The term of this leader.
    """

    def __init__(
        self, settings: Settings, put: Callable[[Any], None], *, known: Callable[[], Cluster], term: int
    ) -> None:
        self._settings, self._put, self._known, self._term = settings, put, known, term
        self._numbers = itertools.count((term << _TERM_BITS) + 1)
        self._newest: dict[str, int] = {}  # the number of the newest message of each kind
        self._closed = threading.Event()

    def close(self) -> None:
        """This agent ends: no message is repeated, and none is waited for."""
        self._closed.set()

    def admit_first_view(self, command: AdmitFirstView) -> None:
        """Admits all peers to the first view; the state is rank 0's."""

        def perform() -> None:
            view = command.view
            try:
                admission = self._admission(view, (0,), self._settings.deadlines.wait_s)
                for peer in view.peers:
                    self._ask(peer, "Admit", admission, self._settings.deadlines.wait_s)
            # A first peer has ended, or does not answer: there is no view without it.
            except KungfuError as error:
                self._put(FormationFailed(error))

        self._in_thread(perform)

    def admit_phase(self, command: AdmitPhase) -> None:
        """Admits all peers to the first view of a phase; the state is rank 0's."""
        view = command.view

        def is_over(peer: Peer) -> bool:
            cluster = self._known()
            return not cluster.phases.is_forming or cluster.view != view or self._has_ended(peer)

        def perform() -> None:
            leads = partial(is_over, view.peers[0])
            ask = partial(self._admission, view, (0,), self._attempt_s, leads)
            # Another view was formed meanwhile, or is to be.
            if (admission := self._repeat(ask, view.peers[0], leads)) is None:
                return
            admission.target = command.target
            for peer in view.peers:
                self._send(peer, "Admit", admission, is_over=partial(is_over, peer))

        self._in_thread(perform)

    def compare(self, command: ComparePrograms) -> None:
        """Finds out in what a peer's program differs, and puts the event that says so."""
        other = command.other

        def perform() -> None:
            try:
                reference, its = self._first_described(command.references)
                how = difference(its, self._described(other), names=(f"peer {reference.id}", f"peer {other.id}"))
            # The programs differ in any case; only what differs is not known.
            except KungfuError as error:
                how = f"in what could not be found out ({error})"
            self._put(ProgramDiffers(other.id, how))

        self._in_thread(perform)

    def _first_described(self, peers: Sequence[Peer]) -> tuple[Peer, Description]:
        """The program of the job, from the first of the peers that answers: any may be lost meanwhile."""
        for peer in peers[:-1]:
            try:
                return peer, self._described(peer)
            # It may have been lost: the next one runs the same program.
            except KungfuError:
                continue
        return peers[-1], self._described(peers[-1])

    def _described(self, peer: Peer) -> Description:
        return to_description(self._ask(peer, "DescribeProgram", pb.Empty(), self._settings.deadlines.wait_s))

    def admit_survivors(self, command: AdmitSurvivors) -> None:
        """Admits the survivors to their view.

        An event says if rank 0 has ended, or has not answered for twice ``--heartbeat``. If nobody else waits, it gets
        the deadline of every wait.

        Args:
            command: The view, whose rank 0 forms it.
        """
        view, deadlines = command.view, self._settings.deadlines
        patience_s = deadlines.wait_s if view.size == 1 else min(deadlines.wait_s, 2 * deadlines.heartbeat_s)

        def perform() -> None:
            until = time.monotonic() + patience_s

            def is_over() -> bool:
                return self._is_over(command, view.peers[0]) or time.monotonic() > until

            ask = partial(self._admission, view, command.sources, self._attempt_s, is_over)
            admission = self._repeat(ask, view.peers[0], is_over)
            # Rank 0 cannot form the view: another one is to be tried.
            if admission is None:
                self._put(CoordinatorUnreachable(view))
                return
            admission.recovery.target = command.target
            admission.recovery.lost.update(command.lost)
            for peer in view.peers:
                self._send(peer, "Admit", admission, is_over=partial(self._is_over, command, peer))

        self._in_thread(perform)

    def announce(self, command: AnnounceFailure, peers: Iterable[Peer]) -> None:
        """Announces to all peers at once that a peer is gone, or that views are broken."""
        failure, then = (
            pb.FailureAnnouncement(peer=command.peer, version=command.version, how=command.how),
            self._version(),
        )

        def is_over(peer: Peer) -> bool:
            return self._version() > then or self._has_ended(peer)

        for peer in peers:
            self._send(peer, "AnnounceFailure", failure, is_over=partial(is_over, peer))

    def send_to_rank_0(self, command: JoinerOffer | Asked) -> None:
        """Asks rank 0, which leads the barriers, to hold one for this command.

        In a view with another rank 0 the agent makes a new offer, and repeats a request that was not met.

        Args:
            command: The command; the newer one of two offers, or of two requests of people, counts.
        """
        rank_0, number = self._rank_0(), next(self._numbers)
        assert rank_0 is not None
        method, message, kind = _in_wire_form(replace(command, number=number))
        self._newest[kind] = number

        def is_over() -> bool:
            return self._newest[kind] > number or self._rank_0() != rank_0 or self._has_ended(rank_0)

        self._send(rank_0, method, message, is_over=is_over)

    # ---- whether a message still matters -----------------------------------------------------------------------------

    def _has_ended(self, peer: Peer) -> bool:
        return peer.id not in self._known().alive

    def _version(self) -> int:
        view = self._known().view
        return view.version if view else 0

    def _rank_0(self) -> Peer | None:
        view = self._known().view
        return view.peers[0] if view else None

    def _is_over(self, command: AdmitSurvivors, peer: Peer) -> bool:
        """True if no peer waits for this one in the view of survivors: it is in force, or will be replaced."""
        regrouping = self._known().regrouping
        return regrouping is None or regrouping.formed != command.view or self._has_ended(peer)

    # ---- messages ----------------------------------------------------------------------------------------------------

    @property
    def _attempt_s(self) -> float:
        """The seconds of one attempt: a longer wait for a frozen peer would tell nothing."""
        return min(self._settings.deadlines.wait_s, self._settings.deadlines.heartbeat_s)

    def _admission(self, view: View, sources: Sequence[int], within_s: float, is_over: IsOver = _never) -> pb.Admission:
        address = self._ask(view.peers[0], "PrepareAttachment", from_view(view), within_s, is_over).address
        decision = from_decision(Decision(view, Terms()))
        return pb.Admission(decision=decision, attachment_address=address, sources=sources, term=self._term)

    def _send(self, peer: Peer, method: str, message: Any, *, is_over: IsOver) -> None:
        ask = partial(self._ask, peer, method, message, self._attempt_s, is_over)
        self._in_thread(lambda: self._repeat(ask, peer, is_over))

    def _repeat(self, ask: Callable[[], Any], peer: Peer, is_over: IsOver) -> Any:
        """Asks until there is an answer; ``None`` if it is over before. Only the first failure is put."""
        pause_s, failed = _FIRST_PAUSE_S, False
        while not (is_over() or self._closed.is_set()):
            try:
                return ask()
            except KungfuError as error:
                # People hear of it once, however often it is repeated, unless nothing depends on it any more.
                if not (failed or is_over() or self._closed.is_set()):
                    self._put(NotifyFailed(peer.id, str(error)))
                failed = True
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _ask(self, peer: Peer, method: str, message: Any, within_s: float, is_over: IsOver = _never) -> Any:
        def abandoned() -> PeerFailure | None:
            # It will never answer.
            if self._has_ended(peer):
                return PeerFailure("its process has ended", peers=[peer.id])
            if self._closed.is_set():
                return PeerFailure("this agent ends")
            return PeerFailure("nothing depends on it any more") if is_over() else None

        with rpc.connect(peer.address, secret=self._settings.secret) as channel:
            call, what = getattr(PeerServiceStub(channel), method), f"peer {peer.id} to take {method}"
            return rpc.call(call, message, deadline_s=within_s, what=what, peer=peer.id, abandoned=abandoned)

    def _in_thread(self, perform: Callable[[], None]) -> None:
        threading.Thread(target=perform, daemon=True, name="kungfu-peer-client").start()
