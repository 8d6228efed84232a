"""Converts requests, answers and statuses to messages, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from typing import Any, Literal, TypeVar, get_args

from kungfu.errors import UsageError
from kungfu.event_log.progress import TrainingProgress
from kungfu.runtime.core.requests import (
    Action,
    JobRequest,
    Migrate,
    Point,
    Profile,
    Resize,
    SaveCheckpoint,
    ScaleIn,
    ScaleOut,
    StopTraining,
    in_words,
)
from kungfu.runtime.core.requests.admission import Scaling
from kungfu.runtime.core.requests.request_log import RequestState
from kungfu.runtime.core.terms import Keep
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import optional_field
from kungfu.runtime.ipc.enums import KEEPS, EnumTable
from kungfu.runtime.job_api.plan import PlannedPeer, RefusedSizes, RequestPlan
from kungfu.runtime.job_api.status import (
    JobMetrics,
    JobStatus,
    MembershipStatus,
    PeerState,
    PeerStatus,
    RequestProgress,
    Trouble,
)

__all__ = [
    "from_plan",
    "from_progress",
    "from_request",
    "from_status",
    "to_plan",
    "to_progress",
    "to_request",
    "to_status",
]

Known = TypeVar("Known", JobMetrics, TrainingProgress)
JobRequestKind = Literal["resize", "scale-out", "scale-in", "migrate", "checkpoint", "profile", "stop"]

_REQUEST_KINDS: EnumTable[JobRequestKind, pb.JobRequestKind] = EnumTable(pb.JobRequestKind, get_args(JobRequestKind))
_REQUEST_STATES: EnumTable[RequestState, pb.RequestState] = EnumTable(pb.RequestState, get_args(RequestState))
_SCALINGS: EnumTable[Scaling, pb.Scaling] = EnumTable(pb.Scaling, get_args(Scaling))
_PEER_STATES: EnumTable[PeerState, pb.PeerState] = EnumTable(pb.PeerState, get_args(PeerState))


# ---- requests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """How the actions of one class are carried.

    Args:
        action: The class.
        fields: Gives the fields of the message that are the action's own.
        read: Gives the action back, from the message and the batch size that stays.
    """

    action: type[Action]
    fields: Callable[[Any], Mapping[str, Any]]
    read: Callable[[pb.JobRequest, Keep], Action]


def _from_profile(action: Profile) -> Mapping[str, Any]:
    return {"span": pb.ProfileSpan(minimum=action.minimum, maximum=action.maximum, steps=action.steps)}


def _to_profile(message: pb.JobRequest, keep: Keep) -> Profile:
    return Profile(message.span.minimum, message.span.maximum, message.span.steps, keep)


def _to_migrate(message: pb.JobRequest, keep: Keep) -> Migrate:
    if len(message.peers) != 1:
        raise UsageError(f"migrate names {len(message.peers)} peers; it moves one")
    return Migrate(message.peers[0], message.host)


_FORMS: Mapping[JobRequestKind, _Form] = {
    "resize": _Form(Resize, lambda action: {"size": action.size}, lambda message, keep: Resize(message.size, keep)),
    "scale-out": _Form(
        ScaleOut, lambda action: {"size": action.count}, lambda message, keep: ScaleOut(message.size, keep)
    ),
    "scale-in": _Form(
        ScaleIn, lambda action: {"peers": action.peers}, lambda message, keep: ScaleIn(tuple(message.peers), keep)
    ),
    "migrate": _Form(Migrate, lambda action: {"peers": [action.peer], "host": action.host}, _to_migrate),
    "checkpoint": _Form(SaveCheckpoint, lambda action: {}, lambda message, keep: SaveCheckpoint()),
    "profile": _Form(Profile, _from_profile, _to_profile),
    "stop": _Form(StopTraining, lambda action: {}, lambda message, keep: StopTraining()),
}
_KIND_OF: Mapping[type[Action], JobRequestKind] = {form.action: kind for kind, form in _FORMS.items()}


def from_request(request: JobRequest) -> pb.JobRequest:
    """The message of a request; raises ``UsageError`` for a batch size that cannot be kept, and for other numbers."""
    kind = _KIND_OF[type(request.action)]
    keep: Keep | None = getattr(request.action, "keep", None)
    kept = None if keep is None else KEEPS.to_value(keep)
    try:
        fields = _FORMS[kind].fields(request.action)
        return pb.JobRequest(
            id=request.id, kind=_REQUEST_KINDS.to_value(kind), if_view=request.if_view, keep=kept, **fields
        )
    # A number has no room in a message, or is none.
    except (ValueError, TypeError) as error:
        raise UsageError(f"{in_words(request.action)} cannot be asked for: {error}") from error


def to_request(message: pb.JobRequest) -> JobRequest:
    """The request of a message.

    Raises:
        UsageError: It has no id, is of a kind that is not known, or lacks what its kind needs.
    """
    # An id is by what a repeated request is recognized: without it a repetition would be carried out once more.
    if not message.id:
        raise UsageError("the request has no id; give one that no other request has")
    # Nobody outside may change what is trained without saying so: the job's batch size stays, unless another one shall.
    keep = KEEPS.to_word(message.keep, unspecified="global_batch_size")
    action = _FORMS[_REQUEST_KINDS.to_word(message.kind)].read(message, keep)
    return JobRequest(message.id, action, optional_field(message, "if_view"))


# ---- progress and status -----------------------------------------------------------------------------------------


def from_progress(progress: RequestProgress) -> pb.RequestProgress:
    return pb.RequestProgress(
        id=progress.id,
        words=progress.words,
        state=_REQUEST_STATES.to_value(progress.state),
        reason=progress.reason,
        view=progress.view,
        seconds=progress.seconds,
        points=[pb.Point(**asdict(one)) for one in progress.points],
    )


def to_progress(message: pb.RequestProgress) -> RequestProgress:
    return RequestProgress(
        message.id,
        message.words,
        _REQUEST_STATES.to_word(message.state),
        message.reason,
        message.view,
        message.seconds,
        tuple(Point(one.size, one.steps, one.samples, one.seconds) for one in message.points),
    )


def from_plan(plan: RequestPlan) -> pb.RequestPlan:
    fields = {
        **asdict(plan),
        "joins": [pb.PlannedPeer(id=one.id, host=one.host) for one in plan.joins],
        "leaves": [pb.PlannedPeer(id=one.id, host=one.host) for one in plan.leaves],
        "refused_sizes": [
            pb.RefusedSizes(first=one.first, last=one.last, reason=one.reason) for one in plan.refused_sizes
        ],
    }
    return pb.RequestPlan(**fields)


def to_plan(message: pb.RequestPlan) -> RequestPlan:
    return RequestPlan(
        message.words,
        message.refusal,
        message.view,
        message.before,
        message.after,
        tuple(PlannedPeer(one.id, one.host) for one in message.joins),
        tuple(PlannedPeer(one.id, one.host) for one in message.leaves),
        message.missing,
        optional_field(message, "batch_before"),
        optional_field(message, "batch_after"),
        tuple(RefusedSizes(one.first, optional_field(one, "last"), one.reason) for one in message.refused_sizes),
    )


def from_status(status: JobStatus) -> pb.JobStatus:
    return pb.JobStatus(
        job=status.job,
        scaling=_SCALINGS.to_value(status.scaling),
        membership=pb.MembershipStatus(**asdict(status.membership)),
        peers=[_from_peer(peer) for peer in status.peers],
        figures=pb.JobMetrics(**asdict(status.figures)),
        request=None if status.request is None else from_progress(status.request),
        troubles=[pb.Trouble(time=one.time, text=one.text) for one in status.troubles],
        progress=pb.TrainingProgress(**asdict(status.progress)),
    )


def _from_peer(peer: PeerStatus) -> pb.PeerStatus:
    state = _PEER_STATES.to_value(peer.state)
    message = pb.PeerStatus(
        id=peer.id,
        rank=peer.rank,
        host=peer.host,
        pid=peer.pid,
        state=state,
        for_s=peer.for_s,
        speed=peer.speed,
        address=peer.address,
    )
    # A truth value that is not known is not set.
    if peer.is_straggler is not None:
        message.is_straggler = peer.is_straggler
    return message


def to_status(message: pb.JobStatus) -> JobStatus:
    where = message.membership
    return JobStatus(
        message.job,
        _SCALINGS.to_word(message.scaling),
        MembershipStatus(where.version, where.size, where.target, where.minimum, where.maximum),
        tuple(_to_peer(peer) for peer in message.peers),
        _known(JobMetrics, message.figures),
        to_progress(message.request) if message.HasField("request") else None,
        tuple(Trouble(one.time, one.text) for one in message.troubles),
        _known(TrainingProgress, message.progress),
    )


def _to_peer(message: pb.PeerStatus) -> PeerStatus:
    rank, speed, is_straggler = (optional_field(message, name) for name in ("rank", "speed", "is_straggler"))
    state = _PEER_STATES.to_word(message.state)
    return PeerStatus(
        message.id, rank, message.host, message.pid, state, message.for_s, speed, is_straggler, message.address
    )


def _known(kind: type[Known], message: pb.JobMetrics | pb.TrainingProgress) -> Known:
    """Figures of which any may be unknown."""
    return kind(**{field.name: optional_field(message, field.name) for field in fields_of(kind)})
