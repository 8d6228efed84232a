"""Converts requests, answers and statuses to messages, and back."""

from __future__ import annotations

from typing import cast, get_args

from kungfu.errors import UsageError
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
)
from kungfu.runtime.core.requests.admission import Scaling
from kungfu.runtime.core.terms import Keep
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.job_api.status import (
    JobMetrics,
    JobStatus,
    MembershipStatus,
    PeerState,
    PeerStatus,
    RequestProgress,
    Trouble,
)

__all__ = ["from_progress", "from_request", "from_status", "to_progress", "to_request", "to_status"]

_KINDS = ("resize", "scale-out", "scale-in", "migrate", "checkpoint", "profile", "stop")


def from_request(request: JobRequest) -> pb.JobRequest:
    message = _from_action(request.action)
    message.id = request.id
    message.keep = getattr(request.action, "keep", "")
    if request.if_view is not None:
        message.if_view = request.if_view
    return message


def _from_action(action: Action) -> pb.JobRequest:
    match action:
        case Resize(size, _):
            return pb.JobRequest(kind="resize", size=size)
        case ScaleOut(count, _):
            return pb.JobRequest(kind="scale-out", size=count)
        case ScaleIn(peers, _):
            return pb.JobRequest(kind="scale-in", peers=peers)
        case Migrate(peer, host):
            return pb.JobRequest(kind="migrate", peers=[peer], host=host)
        case Profile(minimum, maximum, steps, _):
            return pb.JobRequest(kind="profile", span=pb.ProfileSpan(minimum=minimum, maximum=maximum, steps=steps))
        case SaveCheckpoint():
            return pb.JobRequest(kind="checkpoint")
        case StopTraining():
            return pb.JobRequest(kind="stop")


def to_request(message: pb.JobRequest) -> JobRequest:
    """Raises ``UsageError`` for a request without an id, of a kind that is none, or that lacks what it needs."""
    if not message.id:
        raise UsageError("the request has no id; give one that no other request has")
    return JobRequest(message.id, _to_action(message), message.if_view if message.HasField("if_view") else None)


def _to_action(message: pb.JobRequest) -> Action:
    keep = _keep(message.keep)
    match message.kind:
        case "resize":
            return Resize(message.size, keep)
        case "scale-out":
            return ScaleOut(message.size, keep)
        case "scale-in":
            return ScaleIn(tuple(message.peers), keep)
        case "migrate":
            if len(message.peers) != 1:
                raise UsageError(f"migrate names {len(message.peers)} peers; it moves one")
            return Migrate(message.peers[0], message.host)
        case "profile":
            return Profile(message.span.minimum, message.span.maximum, message.span.steps, keep)
        case "checkpoint":
            return SaveCheckpoint()
        case "stop":
            return StopTraining()
    raise UsageError(f"a job knows no request {message.kind!r}; it knows {', '.join(_KINDS)}")


def _keep(name: str) -> Keep:
    if name not in ("", *get_args(Keep)):
        raise UsageError(f"a batch size {name!r} cannot be kept; it is {' or '.join(get_args(Keep))}")
    return cast(Keep, name or "global_batch_size")


def from_progress(progress: RequestProgress) -> pb.RequestProgress:
    return pb.RequestProgress(
        id=progress.id,
        words=progress.words,
        state=progress.state,
        reason=progress.reason,
        view=progress.view,
        seconds=progress.seconds,
        points=[
            pb.Point(size=one.size, steps=one.steps, samples=one.samples, seconds=one.seconds)
            for one in progress.points
        ],
    )


def to_progress(message: pb.RequestProgress) -> RequestProgress:
    return RequestProgress(
        message.id,
        message.words,
        message.state,
        message.reason,
        message.view,
        message.seconds,
        tuple(Point(one.size, one.steps, one.samples, one.seconds) for one in message.points),
    )


def from_status(status: JobStatus) -> pb.JobStatus:
    where, figures = status.membership, status.figures
    return pb.JobStatus(
        job=status.job,
        scaling=status.scaling,
        membership=pb.MembershipStatus(
            version=where.version,
            size=where.size,
            target=where.target,
            minimum=where.minimum,
            maximum=where.maximum,
        ),
        peers=[_from_peer(peer) for peer in status.peers],
        figures=pb.JobMetrics(
            step=figures.step,
            epoch=figures.epoch,
            global_batch_size=figures.global_batch_size,
            loss=figures.loss,
            samples_per_s=figures.samples_per_s,
        ),
        request=None if status.request is None else from_progress(status.request),
        troubles=[pb.Trouble(time=one.time, text=one.text) for one in status.troubles],
    )


def _from_peer(peer: PeerStatus) -> pb.PeerStatus:
    return pb.PeerStatus(id=peer.id, rank=peer.rank, host=peer.host, pid=peer.pid, state=peer.state, for_s=peer.for_s)


def to_status(message: pb.JobStatus) -> JobStatus:
    where = message.membership
    return JobStatus(
        message.job,
        cast(Scaling, message.scaling),
        MembershipStatus(where.version, where.size, where.target, where.minimum, where.maximum),
        tuple(_to_peer(peer) for peer in message.peers),
        _to_figures(message.figures),
        to_progress(message.request) if message.HasField("request") else None,
        tuple(Trouble(one.time, one.text) for one in message.troubles),
    )


def _to_peer(message: pb.PeerStatus) -> PeerStatus:
    rank = message.rank if message.HasField("rank") else None
    return PeerStatus(message.id, rank, message.host, message.pid, cast(PeerState, message.state), message.for_s)


def _to_figures(message: pb.JobMetrics) -> JobMetrics:
    def known(name: str) -> bool:
        return bool(message.HasField(name))

    return JobMetrics(
        message.step if known("step") else None,
        message.epoch if known("epoch") else None,
        message.global_batch_size if known("global_batch_size") else None,
        message.loss if known("loss") else None,
        message.samples_per_s if known("samples_per_s") else None,
    )
