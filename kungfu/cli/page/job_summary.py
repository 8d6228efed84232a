"""A job and its peers as plain values for the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kungfu.event_log.events import FailedEvent
from kungfu.event_log.job import Job, JobPeer
from kungfu.runtime.job_api.status import PeerStatus
from kungfu.slowness import STRAGGLER

# Processes that have ended and are still shown.
_MOST_ENDED = 8

Row = dict[str, Any]


class LiveSince:
    """The moments since when peers are in their states, which do not move with each answer of the job."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[str, float]] = {}

    def of(self, peer: PeerStatus, now: float) -> float:
        """The moment for a peer that an answer at `now` describes, in seconds since 1970."""
        if self._since.get(peer.id, ("", 0.0))[0] != peer.state:
            self._since[peer.id] = peer.state, round(now - peer.for_s, 1)
        return self._since[peer.id][1]


def job_summary(job: Job) -> Row:
    """The name, command, times and hosts of a job."""
    started, ending = job.started, job.ending
    return {
        "job": started.job if started else "",
        "command": " ".join(started.command) if started else "",
        "began": started.time if started else None,
        "ended": ending.time if ending else None,
        "how": "" if ending is None else ending.error if isinstance(ending, FailedEvent) else ending.reason,
        "leader": job.leader.name if job.leader else "",
        "view": job.view.version if job.view else 0,
        "hosts": [one.name for one in job.hosts.values() if one.is_present],
    }


def peer_rows(job: Job, live: Iterable[tuple[PeerStatus, float]] | None = None) -> list[Row]:
    """The rows of the table of peers: those in the view by rank, others that run, the last ones that have ended.

    Each has the peer's ``id``, ``rank``, ``host`` by name, ``pid``, ``state``, and since when (``since``, in seconds
    since 1970), and its ``speed`` as a fraction of the median peer's with ``is_slow``; None is not known.

    Args:
        job: The job according to its record.
        live: The answer of the job itself, if it gives one: its peers, each with the moment of its last change.
    """
    ended = [one for one in job.peers.values() if one.state == "ended"][-_MOST_ENDED:]
    if live is None:
        rows = [_recorded_row(job, one) for one in job.peers.values() if one.state != "ended"]
    else:
        rows = [_row(one, one.host, one.state, since, one.speed, one.is_straggler) for one, since in live]
    rows.sort(key=lambda row: (row["rank"] is None, row["rank"] or 0, row["id"]))
    running = {row["id"] for row in rows}
    return [*rows, *(_recorded_row(job, one) for one in sorted(ended, key=lambda one: one.id) if one.id not in running)]


def _recorded_row(job: Job, peer: JobPeer) -> Row:
    host, speed = job.hosts.get(peer.host), job.speeds.get(peer.id) if peer.state != "ended" else None
    state = f"ended: {peer.how}" if peer.state == "ended" else peer.state
    return _row(peer, host.name if host else "", state, peer.since, speed, None if speed is None else speed < STRAGGLER)


def _row(
    peer: JobPeer | PeerStatus, host: str, state: str, since: float | None, speed: float | None, is_slow: bool | None
) -> Row:
    speed = None if speed is None else round(speed, 2)
    return {"id": peer.id, "rank": peer.rank, "host": host, "pid": peer.pid, "state": state, "since": since,
            "speed": speed, "is_slow": is_slow}  # fmt: skip
