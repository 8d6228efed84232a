"""The way of survivors of a loss into the next view: they report the loss, and wait until the job admits them.

A joiner waits for its admission in the same way; it has nothing to report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.core.barrier import Adjust, Decision
from kungfu.runtime.core.cluster.events import LossReport, PeersLost
from kungfu.runtime.core.request import AGENT, Asked, StopTraining
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_asked
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.peer.failed_peers import NoticedLoss, at_fault
from kungfu.runtime.peer.rendezvous.barrier_protocol import MakeTerms, Meeting

_EVER_S = 365 * 86400.0  # the agent ends a peer that waits in vain
_BEFORE_A_LOSS = "a barrier before a loss"


@dataclass(frozen=True)
class LastView:
    """The position of this peer when it lost others.

    Args:
        view: The view that it was in or about to enter; ``None`` before its first one.
        version: The version of the newest view that it knows.
        holds: True if it holds the state.
    """

    view: View | None
    version: int
    holds: bool


@dataclass(frozen=True)
class RegroupProtocol(Meeting):
    """The way of this peer to the view of the survivors."""

    def await_admission(self, *, after: int, meanwhile: Callable[[], None]) -> pb.Admission:
        """Waits for a view that is newer than ``after`` and admits this peer; see ``PeerService.admission``."""
        what = "the job to admit this peer"
        return self.service.admission(after=after, deadline_s=_EVER_S, what=what, meanwhile=meanwhile)

    def report_and_await_admission(
        self, loss: NoticedLoss, last: LastView, *, meanwhile: Callable[[], None]
    ) -> pb.Admission:
        """Leaves, reports, and waits for a view; reports again if somebody else turns out to stand still meanwhile."""
        self.attachment.leave()
        reported = [self._loss_report(loss, last)]
        self.agent_client.report(PeersLost(self.settings.peer, reported[0]))

        def look() -> None:
            report = self._loss_report(loss, last)
            # Another peer turns out to stand still: the agent has to suspect it too.
            if not {*report.suspects} <= {*reported[-1].suspects}:
                reported.append(report)
                self.agent_client.report(PeersLost(self.settings.peer, report))
            meanwhile()

        return self.await_admission(after=last.version, meanwhile=look)

    def _loss_report(self, loss: NoticedLoss, last: LastView) -> LossReport:
        """The report of a loss: the peers that the error names, and those whose heartbeats are missing."""
        error, suspects = str(loss.error), set[int]()
        if last.view is not None:
            suspects = at_fault(loss.error, last.view)
            silence = self.silent_peers(last.view)
            # A peer that the error does not name stands still.
            if silence is not None and not suspects.issuperset(silence.peers):
                suspects.update(silence.peers)
                error = f"{error}; {silence}"
        late = isinstance(loss.error, DeadlineExceeded)
        named, place = tuple(sorted(suspects)), (loss.stage, loss.digest)
        return LossReport(last.version, loss.step, last.holds, error, named, late, *place)

    def survivor_terms(self, before: Decision, view: View, target: int, adjust: Adjust) -> MakeTerms:
        """The terms of survivors: the batch stays, so that what is trained does not change because a peer was lost."""

        def terms() -> Terms:
            stopped = before.terms.stopped or self.service.is_stop_requested()
            kept = replace(before.terms, target_size=target, leaving=(), stopped=stopped)
            kept = replace(kept, refused_size=0, replacement_refused=False)
            return adjust(before.view, Decision(view, kept))

        return terms

    def forward_stop(self, view: View) -> None:
        """Tells the coordinator of the survivors that training has ended, before it makes their terms."""
        coordinator = view.peers[0]
        # This peer leads them itself.
        if coordinator.id == self.settings.peer:
            return
        what = f"rank 0 (peer {coordinator.id}), about to lead view {view.version}"
        abandon_reason = partial(self.abandon_reason, view)
        forward_request = PeerServiceStub(self.channels.to(coordinator.address)).ForwardRequest
        stop = from_asked(Asked(StopTraining(), _BEFORE_A_LOSS, id=AGENT))
        deadline_s = self.settings.deadlines.wait_s
        rpc.call(forward_request, stop, deadline_s=deadline_s, what=what, peer=coordinator.id, abandoned=abandon_reason)
