"""What the agent knows of its job between two events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kungfu.runtime.core.cluster.events import Command, LossReport
from kungfu.runtime.core.exit import Exit
from kungfu.runtime.core.identity import Identity
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Deadlines

__all__ = [
    "Budgets",
    "Cluster",
    "Departure",
    "Hosts",
    "Losses",
    "Processes",
    "Regrouping",
    "Rules",
    "Starting",
    "Transition",
    "exit_in_words",
    "mark_doomed",
]


@dataclass(frozen=True)
class Budgets:
    """How many lost peers are replaced in the life of a job: those that failed, and those that were preempted."""

    failures: int = 10
    preemptions: int = 1000


@dataclass(frozen=True)
class Rules:
    """What holds for the whole job; below ``minimum`` peers, with nobody on the way, it ends."""

    deadlines: Deadlines
    budgets: Budgets = field(default_factory=Budgets)
    minimum: int = 1


@dataclass(frozen=True)
class Starting:
    """A peer on its way: when it was spawned, called ``attach`` and got ready (seconds of the agent's clock).

    ``replaces`` the peer of this id, which was lost; ``None`` for one that a policy asked for. ``identity`` is what it
    said of itself; one with a ``peer`` that is not ready is being compared with the job.
    """

    since: float
    attached: float | None = None
    ready: float | None = None
    peer: Peer | None = None
    replaces: int | None = None
    identity: Identity = field(default_factory=Identity)


@dataclass(frozen=True)
class Processes:
    """By id: those that run, were let go, are through with training, and shall be killed; ids below ``next_id`` are
    given. Programs of ``well`` came to their end while they were in the view, without a word before."""

    alive: frozenset[int] = frozenset()
    parting: frozenset[int] = frozenset()
    finished: frozenset[int] = frozenset()
    doomed: frozenset[int] = frozenset()
    well: frozenset[int] = frozenset()
    next_id: int = 0


# Of the only host of a job, which is told how many peers it runs by the job's limits.
UNBOUNDED = 1 << 30


@dataclass(frozen=True)
class Hosts:
    """Where peers run, by the hosts' numbers in the order of the job's list.

    ``slots`` are those of the hosts that take peers, ``leaving`` the hosts that were given notice and still run some;
    ``of`` says where a peer was started, by id. ``goal`` is the size that the job would have had it lost nobody.
    ``let_go`` says when peers were let go on a host by a decision: a straggler may have been one because of its host.
    ``shares`` are the threads that a peer would have of the cores of each host that the job began with.
    """

    slots: Mapping[int, int] = field(default_factory=lambda: {0: UNBOUNDED})
    leaving: frozenset[int] = frozenset()
    of: Mapping[int, int] = field(default_factory=dict)
    goal: int = 0
    let_go: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    shares: Mapping[int, int] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """What every peer of the job has within an op, so that all add up in one order; 0 if nobody said."""
        return min(self.shares.values(), default=0)

    @property
    def known(self) -> frozenset[int]:
        """The hosts that are in the job: those that take peers, and those that are leaving."""
        return frozenset(self.slots) | self.leaving


@dataclass(frozen=True)
class Departure:
    """A peer whose program ends by itself, since when (seconds of the agent's clock), and whether it trained then.

    ``killed``: for taking too long; ``code`` is its exit code once its process has ended.
    """

    exit: Exit
    since: float
    trained: bool = False
    killed: bool = False
    code: int | None = None

    @property
    def is_gone(self) -> bool:
        """Whether nobody may wait for it any more."""
        return self.exit.kind != "loop"


@dataclass(frozen=True)
class Losses:
    """What was lost so far. ``untrained`` counts the replacements in a row that never came to train.

    ``noticed`` are members that said they would be taken away; ``broken_after`` are scripts that failed when their
    training was over, by id and how. ``exiting`` are peers that said how their programs end, until their view is
    forgotten; ``raised`` are those that were lost to an exception of their own, by id.
    """

    failures: int = 0
    preemptions: int = 0
    untrained: int = 0
    noticed: frozenset[int] = frozenset()
    broken_after: Mapping[int, str] = field(default_factory=dict)
    exiting: Mapping[int, Departure] = field(default_factory=dict)
    raised: Mapping[int, Exit] = field(default_factory=dict)


@dataclass(frozen=True)
class Regrouping:
    """A view that lost somebody, until another one is in force.

    ``version`` is the newest number in use; ``lost`` says how members were lost; ``reports`` are of the survivors that
    wait for a new view. Once it is ``formed`` they have been admitted to it, and each of them may report anew.
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
    """The agent's knowledge; ``identity`` is that of the first peer of the first view."""

    rules: Rules
    view: View | None = None
    starting: Mapping[int, Starting] = field(default_factory=dict)
    missing: Mapping[int, str] = field(default_factory=dict)
    processes: Processes = field(default_factory=Processes)
    losses: Losses = field(default_factory=Losses)
    regrouping: Regrouping | None = None
    hosts: Hosts = field(default_factory=Hosts)
    identity: Identity = field(default_factory=Identity)

    @property
    def alive(self) -> frozenset[int]:
        """The ids of running processes."""
        return self.processes.alive

    @property
    def members(self) -> tuple[int, ...]:
        """Those of the view who run, train, and were not let go: who has to be heard when it breaks."""
        if self.view is None:
            return ()
        people, ending = self.processes, {p for p, one in self.losses.exiting.items() if one.is_gone}
        gone = people.parting | people.finished | ending
        return tuple(p for p in self.view.ids if p in people.alive and p not in gone)


Transition = tuple[Cluster, list[Command]]


def mark_doomed(cluster: Cluster, peers: Iterable[int]) -> Cluster:
    """Peers that were on their way are let go and killed; another agent that takes over has to know."""
    people, going = cluster.processes, frozenset(peers)
    people = replace(people, parting=people.parting | going, doomed=(people.doomed | going) & people.alive)
    return replace(cluster, processes=people)


def exit_in_words(code: int) -> str:
    """An exit code in words.

    >>> exit_in_words(3), exit_in_words(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    from signal import Signals

    return f"exit code {code}" if code >= 0 else f"killed by {Signals(-code).name}"
