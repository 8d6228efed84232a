"""The status of a job: its values, derived from the cluster and the request log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kungfu.event_log.job import Job
from kungfu.event_log.numbers import as_whole
from kungfu.event_log.progress import TrainingProgress
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.request import Asked, Leave, Resize, SetLimits, in_words
from kungfu.runtime.core.requests.admission import Scaling
from kungfu.runtime.core.requests.profiling import Point
from kungfu.runtime.core.requests.request_log import Answer, LoggedRequest, RequestState
from kungfu.runtime.core.size_limits import Hold
from kungfu.runtime.settings import Limits

PeerState = Literal["starting", "ready", "training", "leaving", "starting spare", "spare"]


@dataclass(frozen=True)
class MembershipStatus:
    """The view in force, the target size of the job, and the limits of its size.

    Args:
        version: The version of the view; 0 before the first view.
        size: The number of peers of the view.
        target: The number of peers that the job should have.
        minimum: The minimum number of peers.
        maximum: The maximum number of peers.
        held_at: The size at which a person holds the job; ``None`` without a hold.
        held_for_s: Seconds until the end of the hold; ``None`` for a hold until it is released.
    """

    version: int
    size: int
    target: int
    minimum: int
    maximum: int
    held_at: int | None = None
    held_for_s: float | None = None


@dataclass(frozen=True)
class PeerStatus:
    """A peer of the job and its process.

    Args:
        id: The id of the peer.
        rank: The rank of the peer; ``None`` outside the view.
        host: The name of the peer's host.
        pid: The id of the peer's process.
        state: "starting", "ready", "training" or "leaving"; "starting spare" or "spare" if the job does not yet want
            the peer.
        for_s: Seconds since the peer entered this state.
        speed: The average speed, as a fraction of the median peer's speed; ``None`` if no policy measures speeds.
        is_straggler: True if the speed is below `kungfu.slowness.STRAGGLER`; ``None`` if the speed is unknown.
        address: The address of the peer, for callers with the job's secret; empty outside the view.
    """

    id: int
    rank: int | None
    host: str
    pid: int
    state: PeerState
    for_s: float
    speed: float | None = None
    is_straggler: bool | None = None
    address: str = ""


@dataclass(frozen=True)
class JobMetrics:
    """Metrics of the newest steps of the view; ``None`` if unknown. ``global_batch_size`` is in samples."""

    step: int | None = None
    epoch: int | None = None
    global_batch_size: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None


def metrics_of(job: Job) -> JobMetrics:
    """The metrics of a job, with the throughput of the last minute at the present size."""
    step, epoch = as_whole(job.newest.get("step")), as_whole(job.newest.get("epoch"))
    batch = None if job.batch is None else int(job.batch)
    return JobMetrics(step, epoch, batch, job.known.get("loss"), job.samples_per_s)


@dataclass(frozen=True)
class Trouble:
    """A problem of the job, at ``time`` in seconds since 1970."""

    time: float
    text: str


@dataclass(frozen=True)
class RequestProgress:
    """The progress of a request ``seconds`` after its submission; ``points`` are the measurements of a profile."""

    id: str
    words: str
    state: RequestState
    reason: str
    view: int
    seconds: float
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class JobStatus:
    """The status of a job for schedulers; ``troubles`` are the job's latest problems, oldest first."""

    job: str
    scaling: Scaling
    membership: MembershipStatus
    peers: tuple[PeerStatus, ...]
    figures: JobMetrics
    request: RequestProgress | None = None
    troubles: tuple[Trouble, ...] = ()
    progress: TrainingProgress = field(default_factory=TrainingProgress)


def membership_status(
    cluster: Cluster, limits: Limits, *, external: Asked | None, hold: Hold | None = None, now: float = 0.0
) -> MembershipStatus:
    """The membership of a job, with its target size.

    Args:
        external: The request under way, as sent to the coordinator. The target is the requested size; without a
            request, the number of peers, including starting peers.
        now: The time on the leader's clock, in seconds.
    """
    version, size = (cluster.view.version, cluster.view.size) if cluster.view else (0, 0)
    target = size + len(cluster.starting)
    # A resize names its size. Peers that leave make the job smaller; peers that are replaced do not.
    match external.what if external is not None else None:
        case Resize(wanted):
            target = wanted
        case SetLimits():
            target = limits.clip(target)
        case Leave(peers, when) if cluster.view is not None:
            target = size - (len(set(peers) & set(cluster.view.ids)) if when == "now" else 0)
    held_at = None if hold is None else hold.size
    held_for_s = None if hold is None else hold.seconds_left(now)
    return MembershipStatus(version, size, target, limits.minimum, limits.maximum, held_at, held_for_s)


def peer_states(cluster: Cluster) -> dict[int, PeerState]:
    """The state of each running peer, by id; peers that have finished training count as leaving."""
    members = set(cluster.view.ids) - cluster.processes.finished if cluster.view else set()
    states: dict[int, PeerState] = {
        peer: "training" if peer in members else "leaving" for peer in sorted(cluster.alive)
    }
    coming = {peer: entry for peer, entry in cluster.starting.items() if peer in states}
    states |= {peer: "starting" if entry.ready is None else "ready" for peer, entry in coming.items()}
    spares = {peer: entry for peer, entry in cluster.spares.waiting.items() if peer in states}
    return states | {peer: "starting spare" if entry.ready is None else "spare" for peer, entry in spares.items()}


def request_progress(entry: LoggedRequest, *, answer: Answer, now: float) -> RequestProgress:
    """The progress of a request, from one of its answers."""
    return RequestProgress(
        entry.request.id,
        in_words(entry.request.what),
        answer.state,
        answer.reason,
        answer.view,
        now - entry.asked_at,
        answer.points,
    )
