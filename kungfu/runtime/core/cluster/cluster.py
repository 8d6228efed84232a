"""The agent's knowledge of its job between two events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kungfu.runtime.core.cluster.events import Command, LossReport, PeerProgressed
from kungfu.runtime.core.exit import Exit
from kungfu.runtime.core.program_identity import Identity
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Deadlines

PREEMPTED = (-15, 143)  # the exit codes of SIGTERM, with no handler and with ours


@dataclass(frozen=True)
class ReplacementLimits:
    """The limits of replacements of lost peers in the life of a job: of failed, and of preempted ones."""

    failures: int = 10
    preemptions: int = 1000


@dataclass(frozen=True)
class JobLimits:
    """The limits of the whole job; below ``minimum`` peers, without joiners, it ends."""

    deadlines: Deadlines
    replacements: ReplacementLimits = field(default_factory=ReplacementLimits)
    minimum: int = 1


@dataclass(frozen=True)
class Starting:
    """A joiner: a peer on its way into the job. Times are seconds of the agent's clock.

    Args:
        since: When it was spawned.
        attached: When it called ``attach``.
        ready: When it was ready to be admitted.
        said: Its word that it is ready, with its program and phase; until ``ready``, it is compared with the job.
        replaces: The id of the lost peer that it replaces; ``None`` for one that a request requested.
        reads: When it last said that it is held up: it reads its data to where the others are, or compiles; 0 if it
            has not.
    """

    since: float
    attached: float | None = None
    ready: float | None = None
    said: PeerProgressed | None = None
    replaces: int | None = None
    reads: float = 0.0

    @property
    def peer(self) -> Peer | None:
        """Its id and address, once it has said that it is ready."""
        return self.said.peer if self.said else None

    @property
    def identity(self) -> Identity:
        """Its program and machine, as it said."""
        return self.said.identity if self.said else Identity()


@dataclass(frozen=True)
class Phases:
    """The phases of the job, which are the trainings of its program, one after the other; see ``phases``.

    Args:
        number: The phase that the view trains, from 1.
        is_over: True if a member has come to its end, so that another phase may follow.
        ready: The former members that are ready for the next phase, by id.
        lost: The exit codes of the former members that have failed since it was over, by id.
        is_forming: True if the view was formed for the phase, and does not train yet.
        since: When it was formed, seconds of the agent's clock.
        replaced: The peers lost between the phases that are replaced once the phase is under way.
    """

    number: int = 1
    is_over: bool = False
    ready: Mapping[int, Starting] = field(default_factory=dict)
    lost: Mapping[int, int] = field(default_factory=dict)
    is_forming: bool = False
    since: float = 0.0
    replaced: tuple[int, ...] = ()


@dataclass(frozen=True)
class Processes:
    """The processes of the job, by the ids of their peers.

    Args:
        alive: The peers that run.
        released: The peers that were let go.
        finished: The peers that have finished training.
        to_kill: The peers to kill.
        ended_well: The peers that ended with code 0 while they were in the view, without reporting it before.
        next_id: The id of the next peer.
    """

    alive: frozenset[int] = frozenset()
    released: frozenset[int] = frozenset()
    finished: frozenset[int] = frozenset()
    to_kill: frozenset[int] = frozenset()
    ended_well: frozenset[int] = frozenset()
    next_id: int = 0


# Of the only host of a job, which is told how many peers it runs by the job's limits.
UNBOUNDED = 1 << 30


@dataclass(frozen=True)
class Hosts:
    """The hosts of the job, by their numbers in the order of the job's list.

    Args:
        slots: The number of peers that each host takes.
        leaving: The hosts that were given notice and still run peers.
        of: The host on which each peer was started, by id.
        goal: The size that the job would have if it had lost no peer.
        departures: The host of each peer that a decision has removed, and when: its speed may have made it a straggler.
        shares: The threads that a peer would have of the cores of each host that the job began with.
        queue: When each joiner was requested that waits for the slot of a member that was given notice.
        lacked_slot: True if a peer was requested that found no free slot, since a host last came.
    """

    slots: Mapping[int, int] = field(default_factory=lambda: {0: UNBOUNDED})
    leaving: frozenset[int] = frozenset()
    of: Mapping[int, int] = field(default_factory=dict)
    goal: int = 0
    departures: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    shares: Mapping[int, int] = field(default_factory=dict)
    queue: tuple[float, ...] = ()
    lacked_slot: bool = False

    @property
    def threads(self) -> int:
        """The threads of every peer within an op, the same on all so that sums are in one order; 0: not known."""
        return min(self.shares.values(), default=0)

    @property
    def known(self) -> frozenset[int]:
        """The hosts that are in the job: those that take peers, and those that are leaving."""
        return frozenset(self.slots) | self.leaving


@dataclass(frozen=True)
class Departure:
    """A peer that said that its program ends by itself.

    Args:
        exit: The exit that it reported.
        since: When it said so, seconds of the agent's clock.
        trained: True if it was a member at that time.
        killed: True if it was killed for taking too long to end.
        code: Its exit code, once its process has ended.
    """

    exit: Exit
    since: float
    trained: bool = False
    killed: bool = False
    code: int | None = None

    @property
    def is_gone(self) -> bool:
        """True if no peer may wait for it any more."""
        return self.exit.kind != "loop"


@dataclass(frozen=True)
class Losses:
    """The losses so far.

    Args:
        failures: The number of failed peers.
        preemptions: The number of peers taken away by their platform.
        untrained: The number of replacements in a row that never trained.
        noticed: The members that said that they will be taken away.
        broken_after: The failures of scripts after their training was over, by id.
        exiting: The peers that said how their programs end, until their view is forgotten.
        raised: The peers that were lost to an exception of their own, by id.
    """

    failures: int = 0
    preemptions: int = 0
    untrained: int = 0
    noticed: frozenset[int] = frozenset()
    broken_after: Mapping[int, str] = field(default_factory=dict)
    exiting: Mapping[int, Departure] = field(default_factory=dict)
    raised: Mapping[int, Exit] = field(default_factory=dict)

    def with_failed(self, *peers: int) -> Losses:
        """The losses with these failed peers; one that was given notice was counted at that time."""
        return replace(self, failures=self.failures + len({*peers} - self.noticed))

    def with_preempted(self, *peers: int) -> Losses:
        """The losses with these peers that their platform takes away; one that was given notice counts once."""
        news = {*peers} - self.noticed
        return replace(self, preemptions=self.preemptions + len(news), noticed=self.noticed | news)

    def with_ended(self, peer: int, code: int) -> Losses:
        """The losses with a peer whose process has ended: by SIGTERM, it was preempted without time to leave."""
        return self.with_preempted(peer) if code in PREEMPTED else self.with_failed(peer)


@dataclass(frozen=True)
class Regrouping:
    """A view that lost members, until another one is in force.

    Args:
        since: When the first loss was heard of, or the view of the survivors was formed.
        version: The newest version of a view in use.
        lost: The ends of lost members, by id.
        reports: The reports of the survivors that wait for a new view.
        formed: The view that the survivors were admitted to; each of them may report again.
        stuck: The number of views in a row that broke before they trained.
        killed: The members that were killed for being late, once each.
    """

    since: float
    version: int
    lost: Mapping[int, str] = field(default_factory=dict)
    reports: Mapping[int, LossReport] = field(default_factory=dict)
    formed: View | None = None
    stuck: int = 0  # views in a row that broke before they trained
    killed: frozenset[int] = frozenset()  # for being late, once each


@dataclass(frozen=True)
class Cluster:
    """The agent's knowledge of its job.

    Args:
        limits: The limits of the whole job.
        view: The view in force; ``None`` before the first one.
        starting: The joiners, by id.
        missing: Why peers that were requested will not come, by id, until the coordinator hears of it.
        processes: The processes of the job.
        losses: The losses so far.
        regrouping: The recovery under way, if any.
        hosts: The hosts.
        identity: The description by the first peer of the first view of its program and machine; renewed for each
            phase.
        phases: The phases of the job.
    """

    limits: JobLimits
    view: View | None = None
    starting: Mapping[int, Starting] = field(default_factory=dict)
    missing: Mapping[int, str] = field(default_factory=dict)
    processes: Processes = field(default_factory=Processes)
    losses: Losses = field(default_factory=Losses)
    regrouping: Regrouping | None = None
    hosts: Hosts = field(default_factory=Hosts)
    identity: Identity = field(default_factory=Identity)
    phases: Phases = field(default_factory=Phases)

    @property
    def alive(self) -> frozenset[int]:
        """The ids of running processes."""
        return self.processes.alive

    @property
    def members(self) -> tuple[int, ...]:
        """The peers of the view that run, train, and were not let go: when it breaks, each of them has to report."""
        if self.view is None:
            # Nobody trains yet.
            return ()
        people, ending = self.processes, {p for p, one in self.losses.exiting.items() if one.is_gone}
        gone = people.released | people.finished | ending
        return tuple(p for p in self.view.ids if p in people.alive and p not in gone)

    @property
    def between_phases(self) -> frozenset[int]:
        """The peers that have come to the end of a phase, run, and may begin another one."""
        ending = {peer for peer, one in self.losses.exiting.items() if one.is_gone}
        return (self.processes.finished & self.alive) - ending if self.phases.is_over else frozenset()

    def with_joiner(self, peer: int, entry: Starting) -> Cluster:
        """The cluster with a joiner, or with what is known of it now."""
        return replace(self, starting={**self.starting, peer: entry})

    def without_joiners(self, peers: Collection[int]) -> Cluster:
        """The cluster without some of its joiners; peers that are none do not matter."""
        return replace(self, starting={id_: entry for id_, entry in self.starting.items() if id_ not in peers})


Transition = tuple[Cluster, list[Command]]


def mark_to_kill(cluster: Cluster, peers: Iterable[int]) -> Cluster:
    """Marks joiners as let go and to be killed: an agent that takes over has to know of it."""
    people, going = cluster.processes, frozenset(peers)
    people = replace(people, released=people.released | going, to_kill=(people.to_kill | going) & people.alive)
    return replace(cluster, processes=people)


def exit_in_words(code: int) -> str:
    """An exit code in words.

    Args:
        code: The code; negative: the signal.

    >>> exit_in_words(3), exit_in_words(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    from signal import Signals

    return f"exit code {code}" if code >= 0 else f"killed by {Signals(-code).name}"
