"""What every agent of a job has, whether it decides or follows: its place, its peers, its record, its queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from kungfu.runtime.agent.consensus.allegiance import Allegiance
from kungfu.runtime.agent.record.recorder import Recorder
from kungfu.runtime.agent.supervisor.household import Household
from kungfu.runtime.core.cluster import Budgets, Cluster, Rules
from kungfu.runtime.core.failure import Failure
from kungfu.runtime.core.requests.admission import Scaling
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.settings import Settings

__all__ = ["CUT_OFF", "Ending", "Job", "Outbox", "Signalled", "Station", "name_of"]

CUT_OFF = 4


@dataclass(frozen=True)
class Job:
    """What to run: the peers' settings are ``settings`` with their own id; ``budgets`` bound how many are replaced.

    The peers of a job that is inelastic are not changed from outside. ``hosts`` are those of the job, and this one is
    the one at ``place``; if none are named it is alone, with room for every peer.
    """

    command: tuple[str, ...]
    size: int
    settings: Settings
    environment: Mapping[str, str]
    budgets: Budgets = field(default_factory=Budgets)
    scaling: Scaling = "elastic"
    hosts: tuple[Host, ...] = (Host("127.0.0.1", 1 << 16, 0),)
    place: int = 0

    @property
    def rules(self) -> Rules:
        return Rules(self.settings.deadlines, self.budgets, self.settings.limits.minimum)

    @property
    def numbered(self) -> dict[int, Host]:
        return dict(enumerate(self.hosts))


@dataclass(frozen=True)
class Ending:
    """How a job ended on this host: its exit code, and the failure at the root if there was one.

    ``leaves``: only this host is through with it, the others go on. ``raised`` says of the peers that were lost to an
    exception of their own what it was.
    """

    code: int
    failure: Failure | None = None
    leaves: bool = False
    raised: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Signalled:
    """This agent got a signal."""

    number: int


class Outbox:
    """What the head has yet to hear of, in order: a happening stays in until the head has taken it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[pb.Happening] = deque()
        self._count, self._closed = 0, False

    def put(self, happening: pb.Happening) -> None:
        """The head shall hear of this."""
        with self._changed:
            self._count += 1
            happening.number = self._count
            self._waiting.append(happening)
            self._changed.notify_all()

    def first(self, timeout_s: float | None = None) -> pb.Happening | None:
        """The oldest one, waited for; ``None`` if there is none by then, or this agent ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, timeout=timeout_s)
            return self._waiting[0] if self._waiting and not self._closed else None

    def taken(self) -> None:
        """The head has heard of the oldest one."""
        with self._changed:
            self._waiting.popleft()

    def close(self) -> None:
        """This agent ends: nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def holds(self, what: str) -> bool:
        """Whether the head has yet to hear of one of this kind."""
        with self._changed:
            return any(one.what == what for one in self._waiting)


@dataclass(frozen=True)
class Station:
    """An agent's own things. ``settings`` are the peers' of this host; ``events`` are for its main thread, and
    ``happenings`` for the head, wherever it is."""

    job: Job
    settings: Settings
    allegiance: Allegiance
    household: Household
    recorder: Recorder
    clock: Callable[[], float]
    events: SimpleQueue[Any]
    happenings: Outbox = field(default_factory=Outbox)

    def put(self, event: Any) -> None:
        """The main thread shall see to this."""
        self.events.put(event)

    def take(self, timeout_s: float) -> Any | None:
        """The next event for the main thread; ``None`` if none comes in time."""
        try:
            return self.events.get(timeout=timeout_s)
        except Empty:
            return None


def name_of(peer: int, cluster: Cluster) -> str:
    """What people call a peer.

    >>> from kungfu.runtime.settings import Deadlines
    >>> name_of(3, Cluster(Rules(Deadlines())))
    'peer 3'
    """
    rank = cluster.view.rank_of(peer) if cluster.view else None
    return f"peer {peer}" if rank is None else f"rank {rank}"
