"""Sends the leader's messages to peers, each from a separate thread, so that no peer can block the agent.

A message is repeated until it is answered, or until nothing depends on it any more: the peer has ended, the view is
over, or a newer message replaces it. The peer recognizes a repeated message by its number or by the version of its
view; other messages have the same effect if they are repeated.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kungfu.errors import KungfuError, PeerFailure
from kungfu.runtime.core.cluster import events as decided
from kungfu.runtime.core.cluster.cluster import Cluster
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
_TERM_BITS = 32  # the bits of a number that count the messages of one leader

IsOver = Callable[[], bool]


def _in_wire_form(command: JoinerOffer | Asked) -> tuple[str, Any, str]:
    """The gRPC method, the message and its kind for a command; a newer message replaces one of the same kind."""
    if isinstance(command, JoinerOffer):
        return "OfferJoiners", from_offer(command), "offer"
    # Only one request of people and schedulers is under way at a time.
    peers = command.what.peers if isinstance(command.what, Leave) else ()
    kind = "request" if command.id != AGENT else f"{type(command.what).__name__} {peers}"
    return "ForwardRequest", from_asked(command), kind


@dataclass(frozen=True)
class FormationFailed:
    """The first view could not be formed."""

    error: KungfuError


@dataclass(frozen=True)
class NotifyFailed:
    """A peer has not acknowledged a message, which is now repeated. If the peer ends, a separate event reports that."""

    peer: int
    error: str


class PeerClient:
    """Sends the leader's commands to peers, in numbered messages; numbers grow with each message and with the term.

    Args:
        settings: The settings of the job.
        put: Queues the events that result from the messages.
        known: Returns the leader's newest knowledge of the cluster.
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
        """Stops repeating messages and waiting for answers, because this agent ends."""
        self._closed.set()

    def admit_first_view(self, command: decided.AdmitFirstView) -> None:
        """Admits all peers to the first view, with the state of rank 0."""

        def perform() -> None:
            view = command.view
            try:
                admission = self._admission(view, (0,), self._settings.deadlines.wait_s, lambda: False)
                for peer in view.peers:
                    self._ask(peer, "Admit", admission, self._settings.deadlines.wait_s)
            # One of the first peers has ended, or does not answer: there is no view without this peer.
            except KungfuError as error:
                self._put(FormationFailed(error))

        self._in_thread(perform)

    def admit_phase(self, command: decided.AdmitPhase) -> None:
        """Admits all peers to the first view of a phase, with the state of rank 0."""
        view = command.view

        def is_over(peer: Peer) -> bool:
            cluster = self._known()
            return not cluster.phases.is_forming or cluster.view != view or self._has_ended(peer)

        # If this view is over before rank 0 answers, another view was formed meanwhile, or will be.
        self._in_thread(lambda: self._admit(view, (0,), pb.Admission(target=command.target), is_over))

    def compare(self, command: decided.ComparePrograms) -> None:
        """Compares a peer's program with the job's, and queues a ``ProgramDiffers`` event with the difference."""
        other = command.other

        def perform() -> None:
            try:
                reference, its = self._first_described(command.references)
                how = difference(its, self._described(other), names=(f"peer {reference.id}", f"peer {other.id}"))
            # The digests show that the programs differ; only a description of the difference is missing.
            except KungfuError as error:
                how = f"in what could not be found out ({error})"
            self._put(decided.ProgramDiffers(other.id, how))

        self._in_thread(perform)

    def _first_described(self, peers: Sequence[Peer]) -> tuple[Peer, Description]:
        """The first of ``peers`` that answers, and its program's description; raises the last error if none answers."""
        for peer in peers[:-1]:
            # The peer may have been lost: the next peer runs the same program.
            with suppress(KungfuError):
                return peer, self._described(peer)
        return peers[-1], self._described(peers[-1])

    def _described(self, peer: Peer) -> Description:
        return to_description(self._ask(peer, "DescribeProgram", pb.Empty(), self._settings.deadlines.wait_s))

    def admit_survivors(self, command: decided.AdmitSurvivors) -> None:
        """Admits the survivors to their view.

        Queues ``CoordinatorUnreachable`` if rank 0 has ended, or has not answered for twice ``--heartbeat``. If rank 0
        is the only survivor, the limit is ``--deadline`` instead.

        Args:
            command: The command, with the view of the survivors.
        """
        view, deadlines = command.view, self._settings.deadlines
        patience_s = deadlines.wait_s if view.size == 1 else min(deadlines.wait_s, 2 * deadlines.heartbeat_s)

        def perform() -> None:
            fields = pb.Admission(recovery=pb.Recovery(target=command.target, lost=command.lost))
            # Rank 0 cannot form the view: another view is to be tried.
            if not self._admit(view, command.sources, fields, partial(self._is_over, command), patience_s):
                self._put(decided.CoordinatorUnreachable(view))

        self._in_thread(perform)

    def announce(self, command: decided.AnnounceFailure, peers: Iterable[Peer]) -> None:
        """Announces to ``peers``, without waiting, that a peer is lost, or that views cannot go on without recovery."""
        failure = pb.FailureAnnouncement(peer=command.peer, version=command.version, how=command.how)
        then = self._version()

        def is_over(peer: Peer) -> bool:
            return self._version() > then or self._has_ended(peer)

        for peer in peers:
            self._send(peer, "AnnounceFailure", failure, is_over=partial(is_over, peer))

    def send_to_rank_0(self, command: JoinerOffer | Asked) -> None:
        """Asks rank 0, the coordinator, to hold a barrier for this command; the command replaces an earlier command
        of the same kind. If another peer becomes rank 0, the agent repeats the commands not carried out yet."""
        rank_0, number = self._rank_0(), next(self._numbers)
        assert rank_0 is not None
        method, message, kind = _in_wire_form(replace(command, number=number))
        self._newest[kind] = number

        def is_over() -> bool:
            return self._newest[kind] > number or self._rank_0() != rank_0 or self._has_ended(rank_0)

        self._send(rank_0, method, message, is_over=is_over)

    # ---- relevance of a message --------------------------------------------------------------------------------------

    def _has_ended(self, peer: Peer) -> bool:
        return peer.id not in self._known().alive

    def _version(self) -> int:
        view = self._known().view
        return view.version if view else 0

    def _rank_0(self) -> Peer | None:
        view = self._known().view
        return view.peers[0] if view else None

    def _is_over(self, command: decided.AdmitSurvivors, peer: Peer) -> bool:
        """True if no survivor waits for ``peer``: their view is in force or will be replaced, or the peer has ended."""
        regrouping = self._known().regrouping
        return regrouping is None or regrouping.formed != command.view or self._has_ended(peer)

    # ---- messages ----------------------------------------------------------------------------------------------------

    def _admit(
        self, view: View, sources: Sequence[int], fields: pb.Admission, is_over: Callable[[Peer], bool],
        patience_s: float = math.inf,
    ) -> bool:  # fmt: skip
        """Sends all peers their admission to a view, with ``fields`` added; False if rank 0 is not ready in time."""
        until, rank_0 = time.monotonic() + patience_s, view.peers[0]

        def is_too_late() -> bool:
            return is_over(rank_0) or time.monotonic() > until

        ask = partial(self._admission, view, sources, self._attempt_s, is_too_late)
        if (admission := self._repeat(ask, rank_0, is_too_late)) is None:
            return False
        admission.MergeFrom(fields)
        for peer in view.peers:
            self._send(peer, "Admit", admission, is_over=partial(is_over, peer))
        return True

    @property
    def _attempt_s(self) -> float:
        """The time limit of one attempt, in seconds; a longer wait for a frozen peer would be useless."""
        return min(self._settings.deadlines.wait_s, self._settings.deadlines.heartbeat_s)

    def _admission(self, view: View, sources: Sequence[int], within_s: float, is_over: IsOver) -> pb.Admission:
        address = self._ask(view.peers[0], "PrepareAttachment", from_view(view), within_s, is_over).address
        decision = from_decision(Decision(view, Terms()))
        return pb.Admission(decision=decision, attachment_address=address, sources=sources, term=self._term)

    def _send(self, peer: Peer, method: str, message: Any, *, is_over: IsOver) -> None:
        ask = partial(self._ask, peer, method, message, self._attempt_s, is_over)
        self._in_thread(lambda: self._repeat(ask, peer, is_over))

    def _repeat(self, ask: Callable[[], Any], peer: Peer, is_over: IsOver) -> Any:
        """Repeats ``ask`` until it succeeds; returns the answer, ``None`` once ``is_over``. Reports only one error."""
        pause_s, failed = _FIRST_PAUSE_S, False
        while not (is_over() or self._closed.is_set()):
            try:
                return ask()
            except KungfuError as error:
                # People see only the first failure, and none if nothing depends on the message any more.
                if not (failed or is_over() or self._closed.is_set()):
                    self._put(NotifyFailed(peer.id, str(error)))
                failed = True
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _ask(self, peer: Peer, method: str, message: Any, within_s: float, is_over: IsOver = lambda: False) -> Any:
        def abandoned() -> PeerFailure | None:
            # The peer will never answer.
            if self._has_ended(peer):
                return PeerFailure("its process has ended", peers=[peer.id])
            if self._closed.is_set():
                return PeerFailure("this agent ends")
            return PeerFailure("nothing depends on it any more") if is_over() else None

        with rpc.connect(peer.address, secret=self._settings.secret) as channel:
            call, what = getattr(PeerServiceStub(channel), method), f"peer {peer.id} to take {method}"
            return rpc.call(call, message, deadline_s=within_s, what=what, peer=peer.id, abandoned=abandoned)

    def _in_thread(self, perform: Callable[[], object]) -> None:
        threading.Thread(target=perform, daemon=True, name="kungfu-peer-client").start()
