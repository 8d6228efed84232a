"""A peer's life in the job: ready, admitted, at barriers, gone. The executor of what ``decide`` decides.

A barrier has two meetings. At the first all peers of the view bring the digest of their state, and the leader (rank 0)
its decision; the answer is the view and the terms that come after. If the view changed, those who stay and those who
join plug their attachments together, the joiners fetch the state, and at the second meeting everybody's digest is
compared again: no step runs on a state that is not the same everywhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure
from kungfu.runtime.attachment.protocol import Attachment
from kungfu.runtime.deciding.cluster import Report
from kungfu.runtime.deciding.decide import Decision, Prepared, Terms, Wish, decide
from kungfu.runtime.deciding.demand import Demand
from kungfu.runtime.deciding.view import Peer, View
from kungfu.runtime.notice import heed_notices
from kungfu.runtime.peer.agency import Agency
from kungfu.runtime.peer.install import Entry, Installer, from_leader, same_everywhere
from kungfu.runtime.peer.passage import Adjust, Passage, Standing, Survived, as_decided
from kungfu.runtime.peer.replicate import ReplicatedState
from kungfu.runtime.peer.service import PeerService
from kungfu.runtime.settings import Settings
from kungfu.runtime.wire import messages_pb2 as pb
from kungfu.runtime.wire import rpc
from kungfu.runtime.wire.convert import from_demand, from_terms, from_view, from_wish, to_terms, to_view, to_wish
from kungfu.runtime.wire.messages_pb2_grpc import PeerServiceStub, add_PeerServiceServicer_to_server

__all__ = ["Loss", "Membership"]

_NAMED = re.compile(r"rank[ =]([0-9,]+)")
_NAMED_BY_ID = re.compile(r"peer ([0-9]+)")
_EVER_S = 365 * 86400.0  # the agent ends who waits in vain
# What a program does at its end would take the processor from those who plug together without it.
_STEP_ASIDE_S = 0.1


@dataclass(frozen=True)
class Loss:
    """What this peer knows when it has lost others: the error, its steps done, and the terms in force."""

    error: KungfuError
    step: int
    terms: Terms


class Membership:
    """This peer's part in the views of its job. One thread at a time calls it: the one that trains."""

    def __init__(
        self,
        settings: Settings,
        *,
        attachment: Attachment,
        on_offer: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._attachment, self._clock = settings, attachment, clock
        self._deadline_s = settings.deadlines.wait_s
        self._service = PeerService(deadline_s=self._deadline_s, on_offer=on_offer, rendezvous=attachment.prepare)
        self._server, self._agency = _started(settings, self._service)
        self._lines = rpc.Lines(secret=settings.secret)
        self._installer = Installer(settings, attachment, self._service, self._agency, self._lines, clock)
        self._standing: Standing | None = None
        self._entering: View | None = None
        self._barriers = self._heard = 0
        self._holds = False
        self._heed_no_more: Callable[[], None] | None = None

    @property
    def view(self) -> View:
        """The view that this peer is in."""
        return self._member().view

    def join(self, state: ReplicatedState) -> Passage:
        """Says that this peer is ready, and waits until a view admits it and its state is that of the others.

        From then on SIGTERM is a notice: the job lets this peer go. Before, it ends the process, which has nothing yet.
        """
        with state.overwritten():  # the first use of anything is slow, and this one keeps nobody waiting
            state.digest()
        self._agency.ready()
        self._attachment.close()
        while True:
            admission = self._admission()
            parts: dict[str, float] = {}
            try:
                standing = self._enter(self._entry(admission), state, parts)
                self._heed_no_more = heed_notices(lambda: self._agency.notify("SIGTERM"))
                return Passage(None, standing, parts=parts)
            except (PeerFailure, DeadlineExceeded) as error:
                self._attachment.close()
                self._agency.lost(self._known(Loss(error, 0, Terms())))  # the others go on, and admit this peer later

    def survive(self, state: ReplicatedState, loss: Loss, *, adjust: Adjust = as_decided) -> Passage:
        """This peer lost others: unplugs itself, reports, and enters the view of those who live.

        Those furthest on hold the state that counts, the others take it from them; the lowest rank leads, and lets
        ``adjust`` make the terms. Where one of them knows that training has ended, it has ended for all: the lost
        leader may have said so to some only. Raises what is wrong if it is not for the loss of a peer.
        """
        before = replace(self._member(), terms=loss.terms)
        while True:
            started = self._clock()
            admission = self._readmitted(loss)
            parts = {"regroup": self._clock() - started}
            entry = self._entry(admission)
            if entry.standing.rank == 0:
                leads = self._leads(before, entry.view, admission.survival.target, adjust)
                entry = replace(entry, leads=leads)
            try:
                if loss.terms.stopped:
                    self._pass_on_the_end(entry)
                after = self._enter(entry, state, parts)
            except (PeerFailure, DeadlineExceeded) as error:
                loss = replace(loss, error=error)
                continue
            survived = Survived(dict(admission.survival.lost), str(loss.error), entry.sources[0])
            return Passage(before, after, parts=parts, survived=survived)

    def meet(
        self,
        state: ReplicatedState,
        terms: Terms,
        *,
        wish: Wish | None,
        outside: Wish | None = None,
        adjust: Adjust = as_decided,
    ) -> Passage:
        """Holds the barrier that the peers of this view agreed on.

        ``terms`` are those in force at this peer, ``wish`` is its rules', which ought to be that of all; ``outside`` is
        what somebody outside told the leader, and comes before. The leader lets ``adjust`` make the terms of what is
        decided. The passage has the wish of the leader, on every peer.
        Raises ``DeadlineExceeded`` naming who did not come, ``PeerFailure`` for a peer that is gone,
        ``InternalError`` when the shared state differs.
        """
        before = self._member()
        before = replace(before, terms=terms)
        started, parts = self._clock(), dict[str, float]()
        arrival = self._arrival(before, state, wish)
        parts["barrier/digest"] = self._clock() - started
        prepared = self._service.take_offer() if before.rank == 0 else None
        if before.rank == 0:
            heard = outside or wish
            verdict = self._lead(before, arrival, lambda: self._decide(before, heard, prepared, adjust))
        else:
            verdict = self._follow(before, arrival)
            heard = to_wish(verdict.wish) if verdict.HasField("wish") else None
        parts["barrier"] = self._clock() - started
        parts["barrier/meeting"] = parts["barrier"] - parts["barrier/digest"]
        view = to_view(verdict.view)
        after = Standing(view, view.rank_of(self._settings.peer), to_terms(verdict.terms))
        self._move(before, after, state, verdict.rendezvous, parts)
        return Passage(before, after, heard, prepared, parts)

    def part(self, state: ReplicatedState, terms: Terms) -> None:
        """The last barrier of a job whose training is over on all peers: it only compares their states."""
        before = replace(self._member(), terms=terms)
        arrival = self._arrival(before, state, None)
        if before.rank == 0:
            self._lead(before, arrival, lambda: Decision(before.view, before.terms))
        else:
            self._follow(before, arrival)

    def take_demand(self) -> Demand | None:
        """The leader's: what somebody outside wants to have carried out at this barrier, if anything."""
        return self._service.take_demand() if self._member().rank == 0 else None

    def record(self, stream: str, fields: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        """One more line of a stream of the job's journal; see ``Agency.record``."""
        self._agency.record(stream, fields)

    def finish(self, summary: Mapping[str, Any], *, leaving: bool) -> None:
        """This peer's training is over, and SIGTERM ends it as it does any program."""
        if self._heed_no_more is not None:
            self._heed_no_more()
        self._agency.finish(summary, leaving=leaving)

    def close(self) -> None:
        """Leaves the job: unplugs, stops the service."""
        self._attachment.close()
        self._lines.keep([])
        self._agency.close()
        self._server.stop()

    def _arrival(self, before: Standing, state: ReplicatedState, wish: Wish | None) -> pb.Arrival:
        number, self._barriers = self._barriers, self._barriers + 1
        text = f"{wish.rule} asks for {wish.size}" if wish else ""
        digest = state.sampled_digest(before.view.version + number)
        return pb.Arrival(version=before.view.version, number=number, rank=before.rank or 0, wish=text, digest=digest)

    def _member(self) -> Standing:
        if self._standing is None or self._standing.rank is None:
            raise InternalError("a barrier was held by a peer that is in no view")
        return self._standing

    def _move(
        self, before: Standing, after: Standing, state: ReplicatedState, rendezvous: str, parts: dict[str, float]
    ) -> None:
        if after.view.version == before.view.version:
            self._standing = after
        elif after.rank is None:
            self._attachment.close()
            self._standing = after
            time.sleep(_STEP_ASIDE_S)
        else:
            stayers = [rank for rank, peer in enumerate(after.view.peers) if before.view.rank_of(peer.id) is not None]
            self._enter(Entry(after, rendezvous, tuple(stayers)), state, parts)

    def _enter(self, entry: Entry, state: ReplicatedState, parts: dict[str, float]) -> Standing:
        self._heard = max(self._heard, entry.view.version)
        self._holds = self._holds and entry.holds  # a state that is being replaced is neither the old nor the new one
        self._entering = entry.view
        self._standing = standing = self._installer.install(entry, state, parts)
        self._holds, self._barriers, self._entering = True, 0, None
        return standing

    # ---- losing others -------------------------------------------------------------------------------------------

    def _readmitted(self, loss: Loss) -> pb.Admission:
        """Leaves, reports, and waits for a view; reports again if somebody else turns out to stand still meanwhile."""
        self._attachment.leave()
        told = [self._known(loss)]
        self._agency.lost(told[0])

        def look() -> None:
            report = self._known(loss)
            if not {*report.suspects} <= {*told[-1].suspects}:
                told.append(report)
                self._agency.lost(report)

        return self._admission(meanwhile=look)

    def _known(self, loss: Loss) -> Report:
        """What this peer knows of a loss: whom the error names, and who shows no life as far as it can see."""
        error, named = str(loss.error), self._entering or (self._standing.view if self._standing else None)
        suspects = set[int]()
        if named is not None:
            silence, silent = self._installer.shows_no_life(named)
            suspects = _suspects(error, named) | silent
            error = f"{error}; {silence}" if silent and silence not in error else error
        late = isinstance(loss.error, DeadlineExceeded)
        return Report(self._heard, loss.step, self._holds, error, tuple(sorted(suspects)), late)

    def _admission(self, *, meanwhile: Callable[[], None] = lambda: None) -> pb.Admission:
        what = "the job to admit this peer"
        return self._service.admission(after=self._heard, deadline_s=_EVER_S, what=what, meanwhile=meanwhile)

    def _entry(self, admission: pb.Admission) -> Entry:
        view = to_view(admission.view)
        rank = view.rank_of(self._settings.peer)
        if rank is None:
            raise InternalError(f"peer {self._settings.peer} was admitted to view {view.version}, which lacks it")
        return Entry(Standing(view, rank, to_terms(admission.terms)), admission.rendezvous, tuple(admission.sources))

    def _leads(self, before: Standing, view: View, target: int, adjust: Adjust) -> Callable[[], Terms]:
        """The terms of survivors: the batch stays, so that what is trained does not change because a peer was lost."""

        def terms() -> Terms:
            stopped = before.terms.stopped or self._service.told_to_stop()
            kept = replace(before.terms, target_size=target, refused_size=0, leaving=(), stopped=stopped)
            return adjust(before.view, Decision(view, kept))

        return terms

    def _pass_on_the_end(self, entry: Entry) -> None:
        """Whoever leads the survivors hears that training has ended before it makes their terms."""
        leader = entry.view.peers[0]
        if leader.id == self._settings.peer:
            return
        what = f"rank 0 (peer {leader.id}), about to lead view {entry.view.version}"
        demand = from_demand(Demand("stop", "a barrier before a loss"))
        carry, in_vain = (
            PeerServiceStub(self._lines.to(leader.address)).Carry,
            partial(self._installer.in_vain, entry.view),
        )
        rpc.call_unless(in_vain, carry, demand, deadline_s=self._deadline_s, what=what)

    # ---- the first meeting ---------------------------------------------------------------------------------------

    def _follow(self, before: Standing, arrival: pb.Arrival) -> pb.Verdict:
        leader = before.view.peers[0]
        what = f"rank 0 (peer {leader.id}), leading barrier {arrival.number} of view {arrival.version}"
        stub = PeerServiceStub(self._lines.to(leader.address))
        in_vain, deadline_s = partial(self._installer.in_vain, before.view), 2.5 * self._deadline_s
        verdict: pb.Verdict = rpc.call_unless(in_vain, stub.Arrive, arrival, deadline_s=deadline_s, what=what)
        if verdict.error:
            raise from_leader(verdict.kind, verdict.error)
        return verdict

    def _decide(self, before: Standing, wish: Wish | None, prepared: Prepared | None, adjust: Adjust) -> Decision:
        decision = decide(before.view, before.terms, self._settings.limits, wish=wish, prepared=prepared)
        return replace(decision, terms=adjust(before.view, decision), wish=wish)

    def _lead(self, before: Standing, arrival: pb.Arrival, decision: Callable[[], Decision]) -> pb.Verdict:
        meeting = self._service.barriers.at((arrival.version, arrival.number))
        meeting.arrive(0, arrival)
        try:
            arrivals = meeting.everyone(
                before.view.size,
                deadline_s=self._deadline_s,
                what=f"barrier {arrival.number} of view {arrival.version}",
                abandoned=partial(self._installer.in_vain, before.view),
            )
            same_everywhere({rank: dict(message.digest) for rank, message in arrivals.items()}, before.view)
            self._log_dissent({rank: message.wish for rank, message in arrivals.items()}, before.view)
            verdict = self._announce(before.view, decision())
        except KungfuError as error:
            meeting.conclude(pb.Verdict(error=str(error), kind=type(error).__name__))
            raise
        meeting.conclude(verdict)
        return verdict

    def _log_dissent(self, wishes: Mapping[int, str], view: View) -> None:
        """Rank 0's decision is the decision: arithmetic may differ in the last bit between machines. But say so."""
        if len(set(wishes.values())) > 1:
            fields = {"event": "dissent", "view": view.version, "wishes": {str(r): w for r, w in wishes.items()}}
            self.record("events", fields)

    def _announce(self, view: View, decision: Decision) -> pb.Verdict:
        """Tells the agent and the joiners; the peers of the view hear it as the answer to their arrival."""
        if decision.prepare is not None:
            self._agency.prepare(decision.prepare)
        wish = None if decision.wish is None else from_wish(decision.wish)
        verdict = pb.Verdict(view=from_view(decision.view), terms=from_terms(decision.terms), wish=wish)
        if decision.view.version != view.version:
            verdict.rendezvous = self._rendezvous(decision.view)
            stayers = [rank for rank, peer in enumerate(decision.view.peers) if view.rank_of(peer.id) is not None]
            admission = pb.Admission(
                view=verdict.view, terms=verdict.terms, rendezvous=verdict.rendezvous, sources=stayers
            )
            for peer in decision.view.peers[len(stayers) :]:
                self._admit(peer, admission)
        return verdict

    def _rendezvous(self, view: View) -> str:
        first = view.peers[0]
        if first.id == self._settings.peer:
            return self._attachment.prepare(view.size)
        with rpc.connect(first.address, secret=self._settings.secret) as channel:
            stub = PeerServiceStub(channel)
            what = f"peer {first.id}, first of view {view.version}"
            answer: pb.Rendezvous = rpc.call(
                stub.PrepareAttachment, from_view(view), deadline_s=self._deadline_s, what=what
            )
        return answer.address

    def _admit(self, peer: Peer, admission: pb.Admission) -> None:
        stub = PeerServiceStub(self._lines.to(peer.address))
        deadlines = self._settings.deadlines  # it does nothing but wait for this, and all others wait for it
        patience_s = min(deadlines.wait_s, 2 * deadlines.heartbeat_s)
        rpc.call(stub.Admit, admission, deadline_s=patience_s, what=f"peer {peer.id}, about to join")


def _started(settings: Settings, service: PeerService) -> tuple[rpc.Server, Agency]:
    server = rpc.serve(
        lambda grpc_server: add_PeerServiceServicer_to_server(service, grpc_server),
        host=settings.host,
        secret=settings.secret,
        threads=8 + 2 * settings.limits.maximum,
    )
    return server, Agency(settings, Peer(settings.peer, server.address))


def _suspects(error: str, view: View) -> set[int]:
    """The ids of the ranks and peers that an error names."""
    ranks = {int(word) for match in _NAMED.findall(error) for word in match.split(",") if word}
    ids = {view.ids[rank] for rank in ranks if rank < view.size}
    return ids | {int(peer) for peer in _NAMED_BY_ID.findall(error)}
