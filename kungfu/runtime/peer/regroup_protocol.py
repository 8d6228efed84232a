"""The protocol by which survivors of a loss enter the next view: they report the loss, and wait for an admission.

A joiner waits for its admission in the same way, but has nothing to report.
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
from kungfu.runtime.peer.rendezvous.barrier_protocol import BarrierProtocol, MakeTerms

_BEFORE_A_LOSS = "a barrier before a loss"


@dataclass
class ViewProgress:
    """The views of this peer, and its role in the newest view.

    Attributes:
        in_force: The decision in force, with the current view and its settings; ``None`` before the first view.
        entering: The view that this peer is about to enter.
        newest: The version of the newest view known to this peer.
        barriers: The number of barriers held in the view in force.
        holds_state: True if this peer holds the state.
    """

    in_force: Decision | None = None
    entering: View | None = None
    newest: int = 0
    barriers: int = 0
    holds_state: bool = False

    @property
    def last(self) -> View | None:
        """The view that this peer is entering, else its current view; ``None`` before the first view."""
        return self.entering or (None if self.in_force is None else self.in_force.view)

    def begin(self, view: View, *, is_source: bool) -> None:
        """Records that this peer is about to enter ``view``, and that it lacks the state if it is not a source."""
        self.entering, self.newest = view, max(self.newest, view.version)
        # A state that is being overwritten is neither the old nor the new one.
        self.holds_state = self.holds_state and is_source

    def enter(self, after: Decision) -> None:
        """Records that the decision ``after``, and the view that this decision contains, are in force."""
        self.in_force, self.entering, self.barriers = after, None, 0
        # A peer that begins the job holds as much as rank 0, since no peer has trained yet. A peer that received the
        # state lacks the registered values, which arrive before the next step: see `JobMembership.mark_state_complete`.
        self.holds_state = self.holds_state or after.view.begins


def report_and_await_admission(
    protocol: BarrierProtocol, loss: NoticedLoss, views: ViewProgress, *, meanwhile: Callable[[], None]
) -> pb.Admission:
    """Disconnects from the other peers, reports the lost peer and any that falls silent later, and waits for a view."""
    protocol.attachment.leave()
    reported = [_loss_report(protocol, loss, views)]
    report = protocol.agent_client.report
    report(PeersLost(protocol.settings.peer, reported[0]))

    def look() -> None:
        found = _loss_report(protocol, loss, views)
        # Another peer has fallen silent: the agent has to suspect it too.
        if not {*found.suspects} <= {*reported[-1].suspects}:
            reported.append(found)
            report(PeersLost(protocol.settings.peer, found))
        meanwhile()

    return protocol.service.admission(after=views.newest, meanwhile=look)


def _loss_report(protocol: BarrierProtocol, loss: NoticedLoss, views: ViewProgress) -> LossReport:
    """The report of a loss: the peers named by the error, and the peers with missing heartbeats."""
    error, suspects = str(loss.error), set[int]()
    if views.last is not None:
        suspects = at_fault(loss.error, views.last)
        silence = protocol.silent_peers(views.last)
        # A peer that the error does not name is silent.
        if silence is not None and not suspects.issuperset(silence.peers):
            suspects.update(silence.peers)
            error = f"{error}; {silence}"
    late = isinstance(loss.error, DeadlineExceeded)
    named = tuple(sorted(suspects))
    return LossReport(views.newest, loss.step, views.holds_state, error, named, late, loss.stage, loss.digest)


def survivor_terms(protocol: BarrierProtocol, before: Decision, view: View, target: int, adjust: Adjust) -> MakeTerms:
    """Returns a function that makes the settings of the survivors' view; a loss does not change the batch size."""

    def terms() -> Terms:
        stopped = before.terms.stopped or protocol.service.inbox.is_stop_requested()
        kept = replace(before.terms, target_size=target, leaving=(), stopped=stopped)
        # Without joiners, a size that was requested is not reached.
        awaiting = before.terms.awaiting_size if target else None
        kept = replace(kept, refused_size=0, replacement_refused=False, awaiting_size=awaiting)
        return adjust(before.view, Decision(view, kept))

    return terms


def forward_stop(protocol: BarrierProtocol, view: View) -> None:
    """Informs the survivors' coordinator that training has ended, so that the settings of their view say so too."""
    coordinator = view.peers[0]
    # This peer is the coordinator itself.
    if coordinator.id == protocol.settings.peer:
        return
    rpc.call(
        PeerServiceStub(protocol.channels.to(coordinator.address)).ForwardRequest,
        from_asked(Asked(StopTraining(), _BEFORE_A_LOSS, id=AGENT)),
        deadline_s=protocol.settings.deadlines.wait_s,
        what=f"rank 0 (peer {coordinator.id}), about to lead view {view.version}",
        peer=coordinator.id,
        abandoned=partial(protocol.abandon_reason, view),
    )
