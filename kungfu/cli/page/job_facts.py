"""What a record tells of a job as it is now: its name and state, its hosts, and who is where."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kungfu.event_log.events import (
    EndedEvent,
    FailedEvent,
    FinishedEvent,
    HostJoinedEvent,
    HostLeftEvent,
    HostLostEvent,
    LeaderEvent,
    LoggedEvent,
    LostEvent,
    OfferedEvent,
    PeerEndedEvent,
    SpawnedEvent,
    StartedEvent,
    ViewEvent,
)
from kungfu.event_log.numbers import as_float
from kungfu.runtime.job_api.status import STRAGGLER, PeerStatus

__all__ = ["JobFacts", "PeerRow"]

# Processes that have ended and are still shown.
_MOST_ENDED = 8


@dataclass(frozen=True)
class PeerRow:
    """A row of the table of peers.

    Args:
        id: The peer's.
        rank: Its rank; ``None`` outside the view.
        host: The name of its host.
        pid: Its process id.
        state: What it does, or how it ended.
        since: Since when, in seconds since 1970; ``None`` where not known.
        speed: As a fraction of the median peer's; ``None`` where no policy measures it.
        is_slow: Whether it straggles.
    """

    id: int
    rank: int | None = None
    host: str = ""
    pid: int | None = None
    state: str = "starting"
    since: float | None = None
    speed: float | None = None
    is_slow: bool | None = None


class JobFacts:
    """Takes the events of a job in their order, and its steps."""

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {"job": "", "command": "", "began": None, "ended": None, "how": "", "leader": ""}
        self._hosts: dict[int, str] = {}
        self._rows: dict[int, PeerRow] = {}
        self._ended: dict[int, PeerRow] = {}
        self._speeds: dict[int, float] = {}
        self._since: dict[int, tuple[str, float]] = {}
        self._view = 0

    def add(self, event: LoggedEvent) -> None:
        """An event has happened."""
        match event:
            case StartedEvent():
                self._facts |= {"job": event.job, "command": " ".join(event.command), "began": event.time}
            case EndedEvent() | FailedEvent():
                how = event.error if isinstance(event, FailedEvent) else event.reason
                self._facts |= {"ended": event.time, "how": how}
            case HostJoinedEvent():
                self._hosts[event.host] = event.name
            case HostLeftEvent() | HostLostEvent():
                self._hosts.pop(event.host, None)
            case LeaderEvent():
                self._facts["leader"] = event.name
            case _:
                self._move(event)

    def add_step(self, row: Mapping[str, Any]) -> None:
        """A step was measured; where a policy measures the speeds of peers, its line tells them."""
        told = row.get("straggler_fractions")
        if isinstance(told, Mapping):
            speeds = {int(peer): as_float(one) for peer, one in told.items() if _is_id(peer)}
            self._speeds = {peer: one for peer, one in speeds.items() if one is not None and math.isfinite(one)}

    def facts(self) -> dict[str, Any]:
        """The job, as an object."""
        return {**self._facts, "view": self._view, "hosts": [*self._hosts.values()]}

    def peers(self, live: Iterable[PeerStatus] | None = None, *, now: float = 0.0) -> list[dict[str, Any]]:
        """The rows of the table: those in the view by rank, others that run, the last ones that have ended.

        Args:
            live: What the job itself says, where it answers.
            now: The time, in seconds since 1970.
        """
        rows = [*self._rows.values()] if live is None else [self._of_status(one, now) for one in live]
        rows.sort(key=lambda row: (row.rank is None, row.rank or 0, row.id))
        running = {row.id for row in rows}
        ended = [self._ended[peer] for peer in sorted(self._ended) if peer not in running]
        return [asdict(row) for row in (*map(self._timed, rows), *ended)]

    def _timed(self, row: PeerRow) -> PeerRow:
        speed = self._speeds.get(row.id, row.speed)
        is_slow = None if speed is None else speed < STRAGGLER
        return replace(row, speed=None if speed is None else round(speed, 2), is_slow=is_slow)

    def _of_status(self, status: PeerStatus, now: float) -> PeerRow:
        """A row of what the job says; the moment of its last change does not move with each answer."""
        state, since = self._since.get(status.id, ("", 0.0))
        if state != status.state:
            since = round(now - status.for_s, 1)
            self._since[status.id] = status.state, since
        speed = None if status.speed is None else round(status.speed, 2)
        return PeerRow(status.id, status.rank, status.host, status.pid, status.state, since, speed, status.is_straggler)

    # ---- from the record ---------------------------------------------------------------------------------------------

    def _move(self, event: LoggedEvent) -> None:
        """A peer comes, goes, or does something else."""
        match event:
            case SpawnedEvent():
                host = self._hosts.get(event.host or 0, "")
                self._ended.pop(event.peer, None)
                self._rows[event.peer] = PeerRow(event.peer, host=host, pid=event.pid, since=event.time)
            case OfferedEvent():
                for peer in event.peers:
                    self._set(peer, event, state="ready")
            case ViewEvent():
                self._set_view(event)
            case FinishedEvent():
                self._set(event.peer, event, state="leaving" if event.leaving else "done training")
            case LostEvent() | PeerEndedEvent():
                self._end(event)

    def _set(self, peer: int, event: LoggedEvent, **fields: Any) -> None:
        if peer in self._rows:
            self._rows[peer] = replace(self._rows[peer], since=event.time, **fields)

    def _set_view(self, event: ViewEvent) -> None:
        self._view = event.version
        for peer, row in self._rows.items():
            if peer not in event.peers:
                self._rows[peer] = replace(row, rank=None)
        for rank, peer in enumerate(event.peers):
            row = self._rows.get(peer, PeerRow(peer))
            since = row.since if row.state == "training" else event.time
            self._rows[peer] = replace(row, rank=rank, state="training", since=since)

    def _end(self, event: LostEvent | PeerEndedEvent) -> None:
        """A process has ended; how it was lost is told before, and says more than how its process ended."""
        row = self._rows.pop(event.peer, None)
        if row is not None:
            self._ended[event.peer] = replace(row, rank=None, state=f"ended: {event.how}", since=event.time)
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) < 10
