"""A job and its peers as plain values for the page."""

from __future__ import annotations

from typing import Any

from kungfu.event_log.events import FailedEvent
from kungfu.event_log.job import Job, JobPeer
from kungfu.slowness import STRAGGLER

# The limit of ended processes that are shown.
_MOST_ENDED = 8

Row = dict[str, Any]


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


def peer_rows(job: Job) -> list[Row]:
    """The rows of the table of peers: members by rank, other running peers, and the last peers that have ended.

    Returns:
        For each peer its ``id``, ``rank``, ``host`` by name, ``pid``, ``state`` with its beginning ``since`` (seconds
        since 1970), and its ``speed`` as a fraction of the median peer's with ``is_slow``; None means unknown.
    """
    running = [one for one in job.peers.values() if one.state != "ended"]
    running.sort(key=lambda one: (one.rank is None, one.rank or 0, one.id))
    ended = [one for one in job.peers.values() if one.state == "ended"][-_MOST_ENDED:]
    return [_row(job, one) for one in (*running, *sorted(ended, key=lambda one: one.id))]


def _row(job: Job, peer: JobPeer) -> Row:
    host, speed = job.hosts.get(peer.host), job.speeds.get(peer.id) if peer.state != "ended" else None
    state = f"ended: {peer.how}" if peer.state == "ended" else peer.state
    is_slow = None if speed is None else speed < STRAGGLER
    return {"id": peer.id, "rank": peer.rank, "host": host.name if host else "", "pid": peer.pid, "state": state,
            "since": peer.since, "speed": None if speed is None else round(speed, 2), "is_slow": is_slow}  # fmt: skip
