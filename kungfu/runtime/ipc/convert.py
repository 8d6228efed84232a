"""Values of this package to messages, and back: the one place that knows both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import cast

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure, PolicyError, UsageError
from kungfu.runtime.core.barrier import Prepared
from kungfu.runtime.core.barrier_requests import (
    ExternalRequest,
    ExternalRequestKind,
    Leave,
    RescaleRequest,
    When,
)
from kungfu.runtime.core.cluster import LossReport
from kungfu.runtime.core.exit import Exit, ExitKind
from kungfu.runtime.core.program_identity import Description, ProgramPart
from kungfu.runtime.core.shadow import ShadowAsk
from kungfu.runtime.core.terms import Keep, Ramp, RampUnit, Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb

__all__ = [
    "from_exit",
    "from_external_request",
    "from_failure",
    "from_peer",
    "from_prepared",
    "from_report",
    "from_rescale_request",
    "from_shadow",
    "from_terms",
    "from_view",
    "to_exit",
    "to_external_request",
    "to_failure",
    "to_peer",
    "to_prepared",
    "to_report",
    "to_rescale_request",
    "to_shadow",
    "to_terms",
    "to_view",
]


def from_peer(peer: Peer) -> pb.PeerInfo:
    return pb.PeerInfo(id=peer.id, address=peer.address)


def to_peer(message: pb.PeerInfo) -> Peer:
    return Peer(message.id, message.address)


def from_view(view: View) -> pb.ViewInfo:
    return pb.ViewInfo(version=view.version, peers=[from_peer(peer) for peer in view.peers])


def to_view(message: pb.ViewInfo) -> View:
    return View(message.version, tuple(to_peer(peer) for peer in message.peers))


def from_terms(terms: Terms) -> pb.Terms:
    return pb.Terms(
        global_batch_size=terms.global_batch_size,
        batch_per_peer=terms.batch_per_peer,
        target_size=terms.target_size,
        refused_size=terms.refused_size,
        keep=terms.keep,
        ramp=None if terms.ramp is None else pb.Ramp(**asdict(terms.ramp)),
        stopped=terms.stopped,
        leaving=terms.leaving,
        departing=terms.departing,
    )


def to_terms(message: pb.Terms) -> Terms:
    return Terms(
        message.global_batch_size,
        message.batch_per_peer,
        message.target_size,
        message.refused_size,
        cast(Keep, message.keep or "local_batch_size"),
        _to_ramp(message.ramp) if message.HasField("ramp") else None,
        message.stopped,
        tuple(message.leaving),
        tuple(message.departing),
    )


def _to_ramp(message: pb.Ramp) -> Ramp:
    return Ramp(message.start, message.target, message.since, message.over, cast(RampUnit, message.unit))


def from_shadow(one: ShadowAsk) -> pb.Shadow:
    return pb.Shadow(rule=one.rule, step=one.step, value=one.value)


def to_shadow(message: pb.Shadow) -> ShadowAsk:
    return ShadowAsk(message.rule, message.step, message.value)


def from_rescale_request(request: RescaleRequest) -> pb.RescaleRequest:
    return pb.RescaleRequest(
        size=request.size,
        keep=request.keep,
        rule=request.rule,
        step=request.step,
        saw=request.inputs,
        won=request.won,
        lost=request.lost,
        leave=None if request.leave is None else _from_leave(request.leave),
    )


def to_rescale_request(message: pb.RescaleRequest) -> RescaleRequest:
    return RescaleRequest(
        message.size,
        cast(Keep, message.keep),
        message.rule,
        message.step,
        dict(message.saw),
        tuple(message.won),
        tuple(message.lost),
        _to_leave(message.leave) if message.HasField("leave") else None,
    )


def _from_leave(leave: Leave) -> pb.Leave:
    return pb.Leave(peers=leave.peers, when=leave.when, host=leave.host)


def _to_leave(message: pb.Leave) -> Leave:
    host = message.host if message.HasField("host") else None
    return Leave(tuple(message.peers), cast(When, message.when), host)


def from_prepared(prepared: Prepared) -> pb.PreparedPeers:
    return pb.PreparedPeers(
        ready=[from_peer(peer) for peer in prepared.ready],
        missing=prepared.missing,
        reason=prepared.reason,
        parts=prepared.parts,
    )


def to_prepared(message: pb.PreparedPeers) -> Prepared:
    return Prepared(
        tuple(to_peer(peer) for peer in message.ready), tuple(message.missing), message.reason, dict(message.parts)
    )


def from_external_request(request: ExternalRequest) -> pb.ExternalRequest:
    return pb.ExternalRequest(
        id=request.id,
        kind=request.kind,
        why=request.why,
        size=request.size,
        peers=request.peers,
        keep=request.keep,
        host=request.host,
    )


def to_external_request(message: pb.ExternalRequest) -> ExternalRequest:
    kind, keep = cast(ExternalRequestKind, message.kind), cast(Keep, message.keep)
    host = message.host if message.HasField("host") else None
    return ExternalRequest(kind, message.why, message.size, tuple(message.peers), message.id, keep, host)


def from_exit(exit: Exit, peer: int) -> pb.ProgramExit:
    return pb.ProgramExit(
        peer=peer, kind=exit.kind, step=exit.step, name=exit.name, error=exit.error, where=exit.where
    )  # fmt: skip


def to_exit(message: pb.ProgramExit) -> Exit:
    return Exit(cast("ExitKind", message.kind), message.step, message.name, message.error, message.where)


def from_report(report: LossReport, peer: int) -> pb.LossReport:
    return pb.LossReport(
        peer=peer,
        version=report.version,
        step=report.step,
        holds=report.holds,
        error=report.error,
        suspects=report.suspects,
        late=report.late,
    )


def to_report(message: pb.LossReport) -> LossReport:
    return LossReport(
        message.version, message.step, message.holds, message.error, tuple(message.suspects), message.late
    )


# Errors of one cause each. Whatever else ends the wait of a leader is to its followers the loss of a peer.
_FAILURES: Mapping[pb.FailureKind, type[KungfuError]] = {
    pb.FAILURE_KIND_USAGE: UsageError,
    pb.FAILURE_KIND_POLICY: PolicyError,
    pb.FAILURE_KIND_INTERNAL: InternalError,
}


def from_failure(error: KungfuError) -> pb.Failure:
    match error:
        case PeerFailure():
            return pb.Failure(text=str(error), ranks=error.ranks, peers=error.peers, view=error.view)
        case DeadlineExceeded():
            return pb.Failure(
                kind=pb.FAILURE_KIND_DEADLINE,
                text=str(error),
                ranks=error.waiting_for,
                peers=error.peers,
                view=error.view,
                waited_s=None if math.isnan(error.waited_s) else error.waited_s,
            )
        case _:
            kinds = (kind for kind, one in _FAILURES.items() if isinstance(error, one))
            return pb.Failure(kind=next(kinds, pb.FAILURE_KIND_PEER), text=str(error))


def to_failure(message: pb.Failure) -> KungfuError:
    view = message.view if message.HasField("view") else None
    if message.kind == pb.FAILURE_KIND_DEADLINE:
        waited_s = message.waited_s if message.HasField("waited_s") else math.nan
        ranks = message.ranks
        return DeadlineExceeded(message.text, waiting_for=ranks, waited_s=waited_s, peers=message.peers, view=view)
    if message.kind in _FAILURES:
        return _FAILURES[message.kind](message.text)
    return PeerFailure(message.text, ranks=message.ranks, peers=message.peers, view=view)


def from_description(description: Description) -> pb.ProgramDescription:
    parts = [pb.ProgramPart(section=one.section, shown=one.shown, content=one.content) for one in description.parts]
    return pb.ProgramDescription(parts=parts)


def to_description(message: pb.ProgramDescription) -> Description:
    return Description(tuple(ProgramPart(one.section, one.shown, one.content) for one in message.parts))
