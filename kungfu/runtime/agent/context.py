"""The context of an agent, leader or follower: the job, the agent's peers, its record and its queue of events."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

from kungfu.runtime.agent.consensus.agreement import Agreement
from kungfu.runtime.agent.consensus.state import ConsensusState
from kungfu.runtime.agent.journal.recorder import HostRecorder
from kungfu.runtime.agent.supervisor.process_supervisor import ProcessSupervisor
from kungfu.runtime.core.cluster.cluster import Cluster, JobLimits, Place, ReplacementLimits, SpareLimits
from kungfu.runtime.core.failure import Failure
from kungfu.runtime.core.requests.admission import Scaling
from kungfu.runtime.hosts import Host, StoreAddress
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.settings import Deadlines, Settings


@dataclass(frozen=True)
class JobSpec:
    """The job to run.

    Args:
        command: The program and its arguments.
        size: The initial number of peers.
        settings: The settings that all peers share: everything except the id of a peer.
        environment: The environment variables of the peers.
        replacements: The limits on the replacement of peers.
        scaling: "elastic" if people and schedulers may change the peers of the job, else "inelastic".
        hosts: The hosts of the job; by default only this machine, with room for every peer.
        own_host: The number of this host in ``hosts``.
        spares: The number of peers that get ready before the job wants them, and the stage at which they wait.
        lost: The failure by which this process has lost the job before, if the job is started again.
        join: The addresses of hosts of a running job that this host joins, each HOST:PORT; then ``hosts`` contains this
            host alone, until the job has given it a number. Empty for a host that is in the list of the job.
        place: The hosts on which peers start: one after the other, or all evenly.
        min_hosts: The number of hosts with which the job begins; 0 for all ``hosts``.
        store: The etcd that decides who leads, and the job's name in it; ``None`` if the agents decide by themselves.
    """

    command: tuple[str, ...]
    size: int
    settings: Settings
    environment: Mapping[str, str]
    replacements: ReplacementLimits = field(default_factory=ReplacementLimits)
    scaling: Scaling = "elastic"
    hosts: tuple[Host, ...] = (Host("127.0.0.1", 1 << 16, 0),)
    own_host: int = 0
    spares: SpareLimits = field(default_factory=SpareLimits)
    lost: str = ""
    join: tuple[str, ...] = ()
    place: Place = "pack"
    min_hosts: int = 0
    store: StoreAddress | None = None

    @property
    def is_listed(self) -> bool:
        """True if this host knows its number from its command line. Without a list of hosts, a host that may join a job
        (``join``, ``store``) is given a number, and is number 0 if it founds the job."""
        return not self.join and (self.store is None or len(self.hosts) > 1)

    @property
    def is_networked(self) -> bool:
        """True if other hosts are in the job, or may join it: this host listens on a port that they know."""
        return len(self.hosts) > 1 or self.hosts[0].port > 0

    @property
    def deadlines(self) -> Deadlines:
        """The deadlines of the job."""
        return self.settings.deadlines

    @property
    def restarts(self) -> int:
        """The restarts in a row without a newer checkpoint after which the job ends; 0 if it never starts again."""
        return self.settings.checkpoints.restarts

    @property
    def limits(self) -> JobLimits:
        minimum = self.settings.limits.minimum
        return JobLimits(self.deadlines, self.replacements, minimum, self.spares, self.place)


@dataclass(frozen=True)
class Ending:
    """The end of a job on this host.

    Args:
        code: The exit code.
        failure: The root failure, if any.
        leaves: True if only this host leaves the job and the others continue, or may continue.
        raised: The exceptions that caused the loss of peers, by peer.
        restarts: The number of restarts in a row, with the one that follows; 0 if none follows.
    """

    code: int
    failure: Failure | None = None
    leaves: bool = False
    raised: Mapping[int, str] = field(default_factory=dict)
    restarts: int = 0

    @classmethod
    def from_message(cls, end: pb.JobEnd, *, leaves: bool = False) -> Ending:
        """The ending of a host that is told the end of the job."""
        failure = Failure(end.peer, end.why, end.code, tuple(end.output), end.chosen) if end.failed else None
        return cls(end.code, failure, leaves, restarts=end.restarts)

    def to_message(self) -> pb.JobEnd:
        """The end of the job for other hosts."""
        said = self.failure or Failure(-1, "", self.code)
        return pb.JobEnd(
            code=self.code, failed=self.failure is not None, why=said.text, peer=said.peer, output=said.output,
            chosen=said.chosen, restarts=self.restarts,
        )  # fmt: skip


@dataclass(frozen=True)
class SignalReceived:
    """This agent received a signal."""

    number: int


class Outbox:
    """The events of this host that the leader has not confirmed yet, in order."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[pb.HostEvent] = deque()
        self._count, self._closed = 0, False

    def put(self, event: pb.HostEvent) -> None:
        """Numbers an event and adds it."""
        with self._changed:
            self._count += 1
            event.number = self._count
            self._waiting.append(event)
            self._changed.notify_all()

    def first(self) -> pb.HostEvent | None:
        """Waits until there is an unconfirmed event, and returns the oldest; ``None`` if this agent ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return self._waiting[0] if self._waiting and not self._closed else None

    def remove_first(self) -> None:
        """Removes the oldest event once the leader has confirmed it."""
        with self._changed:
            self._waiting.popleft()

    def close(self) -> None:
        """Ends all waits, because this agent ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def holds(self, kind: pb.HostEventKind) -> bool:
        """True if an event of this kind is not confirmed yet."""
        with self._changed:
            return any(event.kind == kind for event in self._waiting)


@dataclass(frozen=True)
class AgentContext:
    """The components shared by the roles of an agent.

    Args:
        job: The job to run.
        settings: The settings of this host's peers.
        consensus: The agent's term, vote and log.
        supervisor: The processes of the agent's peers.
        recorder: The agent's record of the job.
        clock: A monotonic clock in seconds; a newly elected leader continues from the time of the previous one.
        events: The queue of the agent's main thread.
        agreement: Decides who leads the job, and on which states the leader acts.
        host_events: The events of this host for the leader.
        interrupted: Set by SIGINT, which ends every wait of the main thread for other hosts.
    """

    job: JobSpec
    settings: Settings
    consensus: ConsensusState
    supervisor: ProcessSupervisor
    recorder: HostRecorder
    clock: Callable[[], float]
    events: SimpleQueue[Any]
    agreement: Agreement
    host_events: Outbox = field(default_factory=Outbox)
    interrupted: threading.Event = field(default_factory=threading.Event)

    def settings_in(self, cluster: Cluster) -> Settings:
        """The settings of a peer that starts now; with ``--min-hosts`` fewer peers than ``-np`` may begin the job."""
        if cluster.view is not None or not cluster.starting:
            return self.settings
        first = replace(self.settings.checkpoints, founders=len(cluster.starting))
        return replace(self.settings, checkpoints=first)

    def put(self, event: Any) -> None:
        """Queues an event for the main thread."""
        self.events.put(event)

    def next_event(self, timeout_s: float) -> Any | None:
        """The next event for the main thread; ``None`` if no event arrives in time."""
        with self.consensus.waiting():
            try:
                return self.events.get(timeout=timeout_s)
            except Empty:
                return None


def name_of(peer: int, cluster: Cluster) -> str:
    """The name of a peer in messages: its rank, or its id if it has no rank.

    Args:
        peer: The id of the peer.
        cluster: The known state of the job.

    >>> from kungfu.runtime.settings import Deadlines
    >>> name_of(3, Cluster(JobLimits(Deadlines())))
    'peer 3'
    """
    rank = cluster.view.rank_of(peer) if cluster.view else None
    return f"peer {peer}" if rank is None else f"rank {rank}"
