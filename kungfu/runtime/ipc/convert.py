"""Converts the values that peers and agents exchange to messages, and back: the one place that knows both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure, PolicyError, UsageError
from kungfu.runtime.core.barrier import Prepared
from kungfu.runtime.core.barrier_requests import ExternalRequest, Leave, RescaleRequest
from kungfu.runtime.core.cluster import LossReport
from kungfu.runtime.core.exit import Exit
from kungfu.runtime.core.program_identity import Description, ProgramPart, installed_version
from kungfu.runtime.core.shadow import ShadowAsk
from kungfu.runtime.core.terms import Ramp, Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.enums import EXIT_KINDS, EXTERNAL_REQUEST_KINDS, KEEPS, LEAVE_TIMES, RAMP_UNITS
from kungfu.runtime.ipc.fields import INT64

__all__ = [
    "from_description",
    "from_exit",
    "from_external_request",
    "from_failure",
    "from_loss_report",
    "from_peer",
    "from_prepared",
    "from_rescale_request",
    "from_shadow",
    "from_terms",
    "from_view",
    "optional_field",
    "to_description",
    "to_exit",
    "to_external_request",
    "to_failure",
    "to_loss_report",
    "to_peer",
    "to_prepared",
    "to_rescale_request",
    "to_shadow",
    "to_terms",
    "to_view",
]


def optional_field(message: Any, name: str) -> Any:
    """The value of an ``optional`` field; ``None`` where it is not set."""
    return getattr(message, name) if message.HasField(name) else None


# ---- views and their terms ---------------------------------------------------------------------------------------


def from_peer(peer: Peer) -> pb.PeerInfo:
    return pb.PeerInfo(id=peer.id, address=peer.address)


def to_peer(message: pb.PeerInfo) -> Peer:
    return Peer(message.id, message.address)


def from_view(view: View) -> pb.ViewInfo:
    peers = [from_peer(peer) for peer in view.peers]
    return pb.ViewInfo(version=view.version, peers=peers, begins_phase=view.begins_phase)


def to_view(message: pb.ViewInfo) -> View:
    return View(message.version, tuple(to_peer(peer) for peer in message.peers), message.begins_phase)


def from_terms(terms: Terms) -> pb.Terms:
    """The message of terms; raises ``UsageError`` for a batch that no message can carry."""
    # A rule asks for any number of samples, where nobody knows how many an epoch has.
    if terms.global_batch_size not in INT64:
        raise UsageError(
            f"a rule asks for steps of {float(terms.global_batch_size):g} samples; hold what it asks for within what "
            "the job can do, as kf.ops.clip does"
        )
    return pb.Terms(
        global_batch_size=terms.global_batch_size,
        batch_per_peer=terms.batch_per_peer,
        target_size=terms.target_size,
        refused_size=terms.refused_size,
        keep=KEEPS.to_value(terms.keep),
        ramp=None if terms.ramp is None else _from_ramp(terms.ramp),
        stopped=terms.stopped,
        leaving=terms.leaving,
        departing=terms.departing,
        max_global_batch=terms.max_global_batch,
        replaced_peers=terms.replaced_peers,
        replacement_refused=terms.replacement_refused,
        by_command=terms.by_command,
        policy_share=terms.policy_share,
        base_batch=terms.base_batch,
        base_size=terms.base_size,
    )


def to_terms(message: pb.Terms) -> Terms:
    return Terms(
        message.global_batch_size,
        message.batch_per_peer,
        message.target_size,
        message.refused_size,
        KEEPS.to_word(message.keep, unspecified="local_batch_size"),
        _to_ramp(message.ramp) if message.HasField("ramp") else None,
        message.stopped,
        tuple(message.leaving),
        tuple(message.departing),
        message.max_global_batch,
        message.replaced_peers,
        message.replacement_refused,
        message.by_command,
        message.policy_share,
        message.base_batch,
        message.base_size,
    )


def _from_ramp(ramp: Ramp) -> pb.Ramp:
    unit = RAMP_UNITS.to_value(ramp.unit)
    return pb.Ramp(start=ramp.start, target=ramp.target, since=ramp.since, over=ramp.over, unit=unit)


def _to_ramp(message: pb.Ramp) -> Ramp:
    return Ramp(message.start, message.target, message.since, message.over, RAMP_UNITS.to_word(message.unit))


# ---- what barriers are asked for ---------------------------------------------------------------------------------


def from_shadow(one: ShadowAsk) -> pb.Shadow:
    return pb.Shadow(rule=one.rule, step=one.step, value=one.value)


def to_shadow(message: pb.Shadow) -> ShadowAsk:
    return ShadowAsk(message.rule, message.step, message.value)


def from_rescale_request(request: RescaleRequest) -> pb.RescaleRequest:
    return pb.RescaleRequest(
        size=request.size,
        keep=KEEPS.to_value(request.keep),
        rule=request.rule,
        step=request.step,
        inputs=request.inputs,
        won=request.won,
        lost=request.lost,
        leave=None if request.leave is None else _from_leave(request.leave),
        max_global_batch=request.max_global_batch,
    )


def to_rescale_request(message: pb.RescaleRequest) -> RescaleRequest:
    return RescaleRequest(
        message.size,
        KEEPS.to_word(message.keep),
        message.rule,
        message.step,
        dict(message.inputs),
        tuple(message.won),
        tuple(message.lost),
        _to_leave(message.leave) if message.HasField("leave") else None,
        optional_field(message, "max_global_batch"),
    )


def _from_leave(leave: Leave) -> pb.Leave:
    return pb.Leave(peers=leave.peers, when=LEAVE_TIMES.to_value(leave.when), host=leave.host)


def _to_leave(message: pb.Leave) -> Leave:
    return Leave(tuple(message.peers), LEAVE_TIMES.to_word(message.when), optional_field(message, "host"))


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
        kind=EXTERNAL_REQUEST_KINDS.to_value(request.kind),
        why=request.why,
        size=request.size,
        peers=request.peers,
        keep=KEEPS.to_value(request.keep),
        host=request.host,
    )


def to_external_request(message: pb.ExternalRequest) -> ExternalRequest:
    return ExternalRequest(
        EXTERNAL_REQUEST_KINDS.to_word(message.kind),
        message.why,
        message.size,
        tuple(message.peers),
        message.id,
        KEEPS.to_word(message.keep),
        optional_field(message, "host"),
    )


# ---- peers that are lost, and why --------------------------------------------------------------------------------


def from_exit(exit: Exit, peer: int) -> pb.ProgramExit:
    kind = EXIT_KINDS.to_value(exit.kind)
    return pb.ProgramExit(peer=peer, kind=kind, step=exit.step, name=exit.name, error=exit.error, where=exit.where)


def to_exit(message: pb.ProgramExit) -> Exit:
    return Exit(EXIT_KINDS.to_word(message.kind), message.step, message.name, message.error, message.where)


def from_loss_report(report: LossReport, peer: int) -> pb.LossReport:
    return pb.LossReport(
        peer=peer,
        version=report.version,
        step=report.step,
        holds=report.holds,
        error=report.error,
        suspects=report.suspects,
        late=report.late,
        stage=report.stage,
        digest=report.digest,
    )


def to_loss_report(message: pb.LossReport) -> LossReport:
    suspects = tuple(message.suspects)
    return LossReport(
        message.version,
        message.step,
        message.holds,
        message.error,
        suspects,
        message.late,
        message.stage,
        message.digest,
    )


_FAILURES: Mapping[pb.FailureKind, type[KungfuError]] = {
    pb.FAILURE_KIND_PEER: PeerFailure,
    pb.FAILURE_KIND_DEADLINE: DeadlineExceeded,
    pb.FAILURE_KIND_USAGE: UsageError,
    pb.FAILURE_KIND_POLICY: PolicyError,
    pb.FAILURE_KIND_INTERNAL: InternalError,
}


def from_failure(error: KungfuError) -> pb.Failure:
    # Any error that has no kind of its own ends the wait of a leader: to its followers it is the loss of a peer.
    kind = next((kind for kind, one in _FAILURES.items() if isinstance(error, one)), pb.FAILURE_KIND_PEER)
    message = pb.Failure(kind=kind, text=str(error))
    match error:
        case PeerFailure(ranks=ranks):
            message.MergeFrom(pb.Failure(ranks=ranks, peers=error.peers, view=error.view))
        case DeadlineExceeded(waiting_for=ranks, waited_s=waited_s):
            known_s = None if math.isnan(waited_s) else waited_s
            message.MergeFrom(pb.Failure(ranks=ranks, peers=error.peers, view=error.view, waited_s=known_s))
    return message


def to_failure(message: pb.Failure) -> KungfuError:
    kind, view = _FAILURES.get(message.kind), optional_field(message, "view")
    # A newer version has sent it: neither is a peer known to be lost, nor is nothing wrong.
    if kind is None:
        return UsageError(
            f"{message.text} (a failure of kind {message.kind}, which is not known to kungfu {installed_version()}: "
            "run the same version on all hosts)"
        )
    if kind is PeerFailure:
        return PeerFailure(message.text, ranks=message.ranks, peers=message.peers, view=view)
    if kind is DeadlineExceeded:
        waited_s = message.waited_s if message.HasField("waited_s") else math.nan
        ranks, peers = message.ranks, message.peers
        return DeadlineExceeded(message.text, waiting_for=ranks, waited_s=waited_s, peers=peers, view=view)
    return kind(message.text)


# ---- programs ----------------------------------------------------------------------------------------------------


def from_description(description: Description) -> pb.ProgramDescription:
    parts = [pb.ProgramPart(section=one.section, shown=one.shown, content=one.content) for one in description.parts]
    return pb.ProgramDescription(parts=parts)


def to_description(message: pb.ProgramDescription) -> Description:
    return Description(tuple(ProgramPart(one.section, one.shown, one.content) for one in message.parts))
