"""The agent's knowledge of its job between two events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from signal import Signals
from typing import Literal

from kungfu.runtime.core.cluster.events import Command, LossReport, PeerProgressed
from kungfu.runtime.core.failure import Exit
from kungfu.runtime.core.program_identity import Identity
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Deadlines

Place = Literal["pack", "spread"]
PREEMPTED = (-15, 143)  # the exit codes of SIGTERM, without a handler and with our handler


@dataclass(frozen=True)
class ReplacementLimits:
    """The maximum numbers of replacements during a job: of failed peers, and of preempted peers."""

    failures: int = 10
    preemptions: int = 1000


# The stage at which a spare waits: "warm", ready to be admitted; or "loaded", with TensorFlow but without its program.
SpareLevel = Literal["warm", "loaded"]


@dataclass(frozen=True)
class SpareLimits:
    """The number of spares that the job keeps waiting, and the stage at which they wait."""

    number: int = 0
    level: SpareLevel = "warm"


@dataclass(frozen=True)
class JobLimits:
    """The limits of the whole job; the job ends if fewer than ``minimum`` peers, including joiners, are left.

    With the ``place`` "pack" peers start on the first host with a free slot, with "spread" on the one with the fewest.
    """

    deadlines: Deadlines
    replacements: ReplacementLimits = field(default_factory=ReplacementLimits)
    minimum: int = 1
    spares: SpareLimits = field(default_factory=SpareLimits)
    place: Place = "pack"


@dataclass(frozen=True)
class Starting:
    """A joiner, a peer on its way into the job; or a spare, see `SparePool`. Times are seconds of the agent's clock."""

    since: float  # the time at which the joiner was spawned, or at which the job wanted this former spare
    attached: float | None = None  # the time at which the joiner called ``attach``
    # The time at which the joiner was ready to be admitted, or at which a "loaded" spare had loaded TensorFlow.
    ready: float | None = None
    # The joiner's report that it is ready, with its program and phase. ``ready`` is set once the program is compared.
    said: PeerProgressed | None = None
    replaces: int | None = None  # the id of the lost peer that the joiner replaces; ``None`` for a requested joiner
    # The time of the joiner's last report of a delay (reading data up to the others' position, or compiling); 0 without
    # a report.
    reads: float = 0.0
    loads_only: bool = False  # True for a "loaded" spare, and for the joiner that it becomes

    @property
    def peer(self) -> Peer | None:
        """The id and address of the joiner; ``None`` before the joiner has reported that it is ready."""
        return self.said.peer if self.said else None

    @property
    def identity(self) -> Identity:
        """The program and machine that the joiner has reported; empty before the report."""
        return self.said.identity if self.said else Identity()


@dataclass(frozen=True)
class SparePool:
    """The spares of the job: peers that get ready before the job wants them; see ``spares``."""

    waiting: Mapping[int, Starting] = field(default_factory=dict)  # the spares by id, ready or still starting
    failures: int = 0  # the number of spares that have ended since the job last wanted one
    retry_at: float = 0.0  # the earliest time at which another spare starts, in seconds of the agent's clock


@dataclass(frozen=True)
class Phases:
    """The phases of the job: the consecutive trainings of its program; see ``phases``."""

    number: int = 1  # the number of the phase that the view trains, from 1
    is_over: bool = False  # True if a member has reached the end of the phase, so that another phase may follow
    # The former members that are ready for the next phase, by id.
    ready: Mapping[int, Starting] = field(default_factory=dict)
    # The exit codes of the former members that have failed since the end of the phase, by id.
    lost: Mapping[int, int] = field(default_factory=dict)
    is_forming: bool = False  # True if the view was formed for the phase but does not train yet
    since: float = 0.0  # the time at which the view was formed, in seconds of the agent's clock
    replaced: tuple[int, ...] = ()  # the peers lost before this phase, which are replaced once the phase is under way


@dataclass(frozen=True)
class Processes:
    """The processes of the job, by the ids of their peers."""

    alive: frozenset[int] = frozenset()  # the peers that run
    released: frozenset[int] = frozenset()  # the peers that were removed or dismissed
    finished: frozenset[int] = frozenset()  # the peers that have finished training
    to_kill: frozenset[int] = frozenset()  # the peers to kill
    # The peers that ended with exit code 0 while they were in the view, before the end of training.
    ended_well: frozenset[int] = frozenset()
    next_id: int = 0  # the id of the next peer


# The slots of a job's only host: the job alone limits the number of peers.
UNBOUNDED = 1 << 30


@dataclass(frozen=True)
class Hosts:
    """The hosts of the job, by their numbers in the order of the job's list."""

    # The number of peers that each host accepts.
    slots: Mapping[int, int] = field(default_factory=lambda: {0: UNBOUNDED})
    leaving: frozenset[int] = frozenset()  # the hosts that were given notice and still run peers
    of: Mapping[int, int] = field(default_factory=dict)  # the host on which each peer was started, by id
    goal: int = 0  # the size that the job would have if it had lost no peer
    # The host and the time of removal of each peer that a decision has removed: the host may be slow.
    departures: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    # The threads per peer on each of the hosts with which the job began.
    shares: Mapping[int, int] = field(default_factory=dict)
    # The number of devices (GPUs) of each host that has any: a spare that holds a device needs one without a peer.
    devices: Mapping[int, int] = field(default_factory=dict)
    # The request times of the joiners that wait for the slots of members with a notice.
    queue: tuple[float, ...] = ()
    lacked_slot: bool = False  # True if a requested peer has found no free slot since the last host joined
    has_new: bool = False  # True if a host has joined while there was no coordinator that could request peers for it

    @property
    def threads(self) -> int:
        """The number of threads of an op, equal on all peers so that all add in the same order; 0 if unknown."""
        return min(self.shares.values(), default=0)

    @property
    def known(self) -> frozenset[int]:
        """The hosts of the job, including those that are leaving."""
        return frozenset(self.slots) | self.leaving


@dataclass(frozen=True)
class Departure:
    """A peer that has reported the exit of its program."""

    exit: Exit
    since: float  # the time of the report, in seconds of the agent's clock
    trained: bool = False  # True if the peer was a member at that time
    killed: bool = False  # True if the peer was killed for taking too long to end
    code: int | None = None  # the exit code of the peer's process; ``None`` while the process runs

    @property
    def is_gone(self) -> bool:
        """True if the other peers must no longer wait for this peer."""
        return self.exit.kind != "loop"


@dataclass(frozen=True)
class Losses:
    """The losses of peers so far, with preemption notices and reported exits."""

    failures: int = 0  # the number of failed peers
    preemptions: int = 0  # the number of peers preempted by their platform
    untrained: int = 0  # the number of consecutive replacements that never trained
    noticed: frozenset[int] = frozenset()  # the members that were given notice of a preemption
    # The failures of scripts after the end of their training, by id.
    broken_after: Mapping[int, str] = field(default_factory=dict)
    # The peers that have reported the exits of their programs, as long as they run or are in the view.
    exiting: Mapping[int, Departure] = field(default_factory=dict)
    # The exits of the peers that were lost to an exception of their program, by id.
    raised: Mapping[int, Exit] = field(default_factory=dict)
    killed: frozenset[int] = frozenset()  # the recently lost peers that a signal or the loss of their host has ended

    def with_failed(self, *peers: int) -> Losses:
        """Counts these peers as failed, except those with a preemption notice: they count as preempted already."""
        return replace(self, failures=self.failures + len({*peers} - self.noticed))

    def with_preempted(self, *peers: int) -> Losses:
        """Counts these peers as preempted, except those with a preemption notice: they count as preempted already."""
        news = {*peers} - self.noticed
        return replace(self, preemptions=self.preemptions + len(news), noticed=self.noticed | news)

    def with_killed(self, peer: int, code: int) -> Losses:
        """Notes that a signal has ended the process of a peer, if its exit ``code`` says so."""
        return replace(self, killed=self.killed | {peer}) if code < 0 or code in PREEMPTED else self

    def with_ended(self, peer: int, code: int) -> Losses:
        """Counts a peer whose process has ended as failed, or as preempted if SIGTERM ended the process."""
        return self.with_preempted(peer) if code in PREEMPTED else self.with_failed(peer)


@dataclass(frozen=True)
class Regrouping:
    """The recovery of a view that lost members, until another view is in force."""

    since: float  # the time at which the first loss was known, or at which the view of the survivors was formed
    version: int  # the newest version of a view in use
    lost: Mapping[int, str] = field(default_factory=dict)  # the ends of lost members, by id
    # The reports of the survivors that wait for a new view.
    reports: Mapping[int, LossReport] = field(default_factory=dict)
    formed: View | None = None  # the view to which the survivors were admitted; each of them may report again
    stuck: int = 0  # the number of consecutive views that broke before they trained
    killed: frozenset[int] = frozenset()  # the members that were killed because they were late; none is killed twice


@dataclass(frozen=True)
class Cluster:
    """The agent's knowledge of its job."""

    limits: JobLimits
    view: View | None = None  # the view in force; ``None`` before the first view
    starting: Mapping[int, Starting] = field(default_factory=dict)  # the joiners, by id
    spares: SparePool = field(default_factory=SparePool)
    # The reasons why requested peers will not come, by id, until they are reported to the coordinator.
    missing: Mapping[int, str] = field(default_factory=dict)
    processes: Processes = field(default_factory=Processes)
    losses: Losses = field(default_factory=Losses)
    regrouping: Regrouping | None = None  # the recovery under way, if any
    hosts: Hosts = field(default_factory=Hosts)
    # The program and machine of the first peer of the first view; renewed for each phase.
    identity: Identity = field(default_factory=Identity)
    phases: Phases = field(default_factory=Phases)
    terms: Terms = field(default_factory=Terms)  # the terms with which the view began
    first_view: int = 1  # the version of the first view; above 1 if the job was started again

    @property
    def alive(self) -> frozenset[int]:
        """The ids of the peers whose processes run."""
        return self.processes.alive

    @property
    def wanted(self) -> frozenset[int]:
        """The ids of the running peers that the job has asked for: all but the spares."""
        return self.processes.alive - self.spares.waiting.keys()

    @property
    def members(self) -> tuple[int, ...]:
        """The running peers of the view that still train and were not removed; each must report if the view breaks."""
        if self.view is None:
            # No peer trains yet.
            return ()
        people, ending = self.processes, {p for p, one in self.losses.exiting.items() if one.is_gone}
        gone = people.released | people.finished | ending
        return tuple(p for p in self.view.ids if p in people.alive and p not in gone)

    @property
    def between_phases(self) -> frozenset[int]:
        """The running peers that have finished a phase of the program and may begin another phase."""
        ending = {peer for peer, one in self.losses.exiting.items() if one.is_gone}
        return (self.processes.finished & self.alive) - ending if self.phases.is_over else frozenset()

    def with_joiner(self, peer: int, entry: Starting) -> Cluster:
        """The cluster with a new or updated joiner, or with an updated spare."""
        if peer in self.spares.waiting:
            # The job does not want the peer yet.
            return replace(self, spares=replace(self.spares, waiting={**self.spares.waiting, peer: entry}))
        return replace(self, starting={**self.starting, peer: entry})

    def without_joiners(self, peers: Collection[int]) -> Cluster:
        """The cluster without the joiners among ``peers``; other peers are ignored."""
        return replace(self, starting={id_: entry for id_, entry in self.starting.items() if id_ not in peers})


Transition = tuple[Cluster, list[Command]]


def mark_to_kill(cluster: Cluster, peers: Iterable[int]) -> Cluster:
    """Marks peers as removed from the job and as peers to kill, so that a new leader can repeat the kill."""
    people, going = cluster.processes, frozenset(peers)
    people = replace(people, released=people.released | going, to_kill=(people.to_kill | going) & people.alive)
    return replace(cluster, processes=people)


def exit_in_words(code: int) -> str:
    """An exit code as text.

    Args:
        code: The code; if negative, the number of a signal.

    >>> exit_in_words(3), exit_in_words(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    return f"exit code {code}" if code >= 0 else f"killed by {Signals(-code).name}"
