"""Converts requests, answers and statuses to messages, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kungfu.errors import UsageError
from kungfu.runtime.core.requests import (
    Action,
    JobRequest,
    Migrate,
    Profile,
    Resize,
    SaveCheckpoint,
    ScaleIn,
    ScaleOut,
    StopTraining,
    in_words,
)
from kungfu.runtime.core.terms import Keep
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.codec import converters, optional_field
from kungfu.runtime.ipc.enums import KEEPS, EnumTable
from kungfu.runtime.job_api.plan import RequestPlan
from kungfu.runtime.job_api.status import JobStatus, RequestProgress

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

JobRequestKind = Literal["resize", "scale-out", "scale-in", "migrate", "checkpoint", "profile", "stop"]

_REQUEST_KINDS: EnumTable[JobRequestKind, pb.JobRequestKind] = EnumTable(pb.JobRequestKind, get_args(JobRequestKind))


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


# ---- progress, plans and status --------------------------------------------------------------------------------------

from_progress, to_progress = converters(RequestProgress, pb.RequestProgress)
from_plan, to_plan = converters(RequestPlan, pb.RequestPlan)
from_status, to_status = converters(JobStatus, pb.JobStatus)
