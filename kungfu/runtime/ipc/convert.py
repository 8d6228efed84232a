"""Converts the values that peers and agents exchange to messages, and back; no other module handles both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure, PolicyError, UsageError
from kungfu.runtime.core.cluster.events import ReportedEvent, Spawn
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.program_identity import Description, installed_version
from kungfu.runtime.core.request import Asked
from kungfu.runtime.core.shadow import ShadowAsk
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.codec import converters, union_converters

# The integers that fit into a field of a message.
_INT64 = range(-(1 << 63), 1 << 63)

Value = TypeVar("Value")


def _of_its_name(kind: type[Value], **unspecified: str) -> tuple[Callable[[Value], Any], Callable[[Any], Value]]:
    """The converters of a class and the message of the same name."""
    return converters(kind, getattr(pb, kind.__name__), unspecified=unspecified)


from_peer, to_peer = converters(Peer, pb.PeerInfo)
from_view, to_view = converters(View, pb.ViewInfo)
_from_decision, to_decision = _of_its_name(Decision, keep="local_batch_size")


def from_decision(decision: Decision) -> Any:
    """The message of a decision; raises ``UsageError`` if its batch size does not fit into a message."""
    # A rule may ask for any number of samples if the number in an epoch is not known.
    if (samples := decision.terms.global_batch_size) not in _INT64:
        raise UsageError(
            f"a rule asks for steps of {float(samples):g} samples; hold what it asks for within what the job can do, "
            "as kf.ops.clip does"
        )
    return _from_decision(decision)


from_shadow, to_shadow = converters(ShadowAsk, pb.Shadow)
# An external request must not change the training unless it says so: by default, it keeps the global batch size.
from_asked, to_asked = _of_its_name(Asked, keep="global_batch_size", when="now", unit="steps")
from_offer, to_offer = _of_its_name(JoinerOffer)
from_report, to_report = union_converters(ReportedEvent, pb.PeerReport)
from_spawn, to_spawn = _of_its_name(Spawn)

from_description, to_description = converters(Description, pb.ProgramDescription)

_FAILURES: Mapping[pb.FailureKind, type[KungfuError]] = {
    pb.FAILURE_KIND_PEER: PeerFailure,
    pb.FAILURE_KIND_DEADLINE: DeadlineExceeded,
    pb.FAILURE_KIND_USAGE: UsageError,
    pb.FAILURE_KIND_POLICY: PolicyError,
    pb.FAILURE_KIND_INTERNAL: InternalError,
}


def from_failure(error: KungfuError) -> pb.Failure:
    # An error of any other class ends the wait of a coordinator; the other peers treat it as the loss of a peer.
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
    kind, view = _FAILURES.get(message.kind), message.view if message.HasField("view") else None
    # A newer version has sent this kind. It neither proves the loss of a peer nor can be ignored.
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
