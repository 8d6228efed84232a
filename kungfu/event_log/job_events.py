"""Events of the record itself, of the job and of its hosts."""

from __future__ import annotations

from msgspec import field

from kungfu.event_log.logged_event import LoggedEvent

__all__ = [
    "DevicesEvent",
    "EndedEvent",
    "FailedEvent",
    "GapEvent",
    "HostEvent",
    "HostJoinedEvent",
    "HostLeftEvent",
    "HostLostEvent",
    "HostNoticedEvent",
    "LeaderEvent",
    "RecordEvent",
    "RequestEvent",
    "StandbyEvent",
    "StartedEvent",
    "UnrecordedEvent",
]


# ---- the record itself -----------------------------------------------------------------------------------------------


class RecordEvent(LoggedEvent, frozen=True, kw_only=True, tag="record"):
    """The first line: which version of these events the others are of."""

    version: int


class GapEvent(LoggedEvent, frozen=True, kw_only=True, tag="gap"):
    """``lines`` of a file could not be written between two times."""

    file: str
    since: float = field(name="from")
    until: float = field(name="to")
    lines: int
    error: str


class UnrecordedEvent(LoggedEvent, frozen=True, kw_only=True, tag="unrecorded"):
    """A file cannot be written any more, for now; shown on the screen and never written."""

    file: str
    error: str


# ---- the job and its hosts -------------------------------------------------------------------------------------------


class StartedEvent(LoggedEvent, frozen=True, kw_only=True, tag="started"):
    """The job starts its first peers."""

    job: str
    size: int
    command: tuple[str, ...]


class EndedEvent(LoggedEvent, frozen=True, kw_only=True, tag="ended"):
    """The job is over: training is, or a signal ended it, on ``host`` where there are several."""

    reason: str
    host: int | None = None


class FailedEvent(LoggedEvent, frozen=True, kw_only=True, tag="failed"):
    """The job cannot go on. ``peer`` is at the root of it, -1 if none is; ``code`` is its exit code."""

    peer: int
    error: str
    code: int


class HostEvent(LoggedEvent, frozen=True, kw_only=True):
    """Something about one host."""

    host: int
    name: str


class HostJoinedEvent(HostEvent, frozen=True, kw_only=True, tag="host"):
    """A host is in the job; ``pid`` is that of its agent."""

    pid: int


class HostNoticedEvent(HostEvent, frozen=True, kw_only=True, tag="host noticed"):
    """A host will be taken away: its agent got this signal."""

    signal: str


class HostLeftEvent(HostEvent, frozen=True, kw_only=True, tag="host left"):
    """A host has left the job, in good order."""

    why: str


class HostLostEvent(HostEvent, frozen=True, kw_only=True, tag="host lost"):
    """A host is given up, with its peers."""

    why: str


class LeaderEvent(HostEvent, frozen=True, kw_only=True, tag="head"):
    """The agent of this host has been elected, and leads the job from now on."""

    term: int


class DevicesEvent(LoggedEvent, frozen=True, kw_only=True, tag="devices"):
    """The devices of a host are not one for each of its slots."""

    devices: tuple[str, ...]
    slots: int
    host: int | None = None


class StandbyEvent(LoggedEvent, frozen=True, kw_only=True, tag="standby"):
    """From now on there are no processes on standby on a host, and why."""

    why: str
    host: int | None = None


class RequestEvent(LoggedEvent, frozen=True, kw_only=True, tag="request"):
    """A request from outside has come to this ``state`` in view ``view``, ``seconds`` after it was asked."""

    id: str
    request: str
    state: str
    reason: str
    view: int
    seconds: float
