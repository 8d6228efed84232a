"""The events that the agent hears, and the commands that it may be told to perform: values only.

A request (`Asked`) as a command goes to the coordinator of the view, which carries it out at a barrier; so does an
offer of joiners (`JoinerOffer`). A decision of such a barrier (`Decision`) is an event where it wants another number of
processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kungfu.runtime.core.exit import Exit, ExitKind
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.program_identity import Identity
from kungfu.runtime.core.request import Asked
from kungfu.runtime.core.view import Peer, View


@dataclass(frozen=True)
class PeerProgressed:
    """A joiner attached, or (with ``ready``) waits to be admitted, and says what program it runs.

    A former member says that it is ready, too, before each phase after the first. ``phase`` is that which it is ready
    for.
    """

    peer: Peer
    ready: bool
    identity: Identity = field(default_factory=Identity)
    phase: int = 1


@dataclass(frozen=True)
class ProgramDiffers:
    """A joiner does not run the program of the job: ``how`` says what differs."""

    peer: int
    how: str


@dataclass(frozen=True)
class ViewStarted:
    """A view has begun to train."""

    view: View


@dataclass(frozen=True)
class TrainingFinished:
    """A peer's training is over: by itself, or because a view let it go.

    Args:
        peer: The peer.
        leaving: True if a view let it go.
        phase: The phase that is over, after which another one may follow; 0 if none can.
    """

    peer: int
    leaving: bool
    phase: int = 0


@dataclass(frozen=True)
class LossReport:
    """The report of a peer that lost others.

    Args:
        version: The newest view that it has heard of.
        step: Its steps done.
        holds: True if it holds the state, registered values included; a joiner does not before its first step.
        error: The error by which it noticed the loss.
        suspects: The ids that its error names.
        late: True if a deadline expired; else a connection ended.
        stage: The stage between that step and the next: 0 in the barrier of that step, 1 after it, and one more for
            each exchange of the peers that it has begun since, and for each that it has brought to its end.
        digest: The checksum of its replicated state, where an exchange has begun: by then each may hold something else.
    """

    version: int
    step: int
    holds: bool
    error: str
    suspects: tuple[int, ...] = ()
    late: bool = False
    stage: int = 0
    digest: int = 0


@dataclass(frozen=True)
class PeersLost:
    """A peer lost others, has unplugged itself and waits for a new view."""

    peer: int
    report: LossReport


@dataclass(frozen=True)
class CoordinatorUnreachable:
    """Nobody could be admitted to this view of survivors: its coordinator has ended, or did not answer in time."""

    view: View


@dataclass(frozen=True)
class PeerNoticed:
    """A peer was told by its platform that it will be taken away soon."""

    peer: int


@dataclass(frozen=True)
class ProgramExiting:
    """A peer says that its program is ending by itself, or has left its training loop; its process still runs."""

    peer: int
    exit: Exit


@dataclass(frozen=True)
class ProcessEnded:
    """A process ended, with its exit code (negative: the signal)."""

    peer: int
    code: int


@dataclass(frozen=True)
class HostJoined:
    """A host takes peers, this many at a time."""

    host: int
    slots: int


@dataclass(frozen=True)
class HostNoticed:
    """A host will be taken away soon, with all its peers; another one stays."""

    host: int


@dataclass(frozen=True)
class HostLost:
    """A host is gone, and with it all its peers."""

    host: int
    how: str


@dataclass(frozen=True)
class LeaderTookOver:
    """Another agent decides from now on; the last commands of the one before may not have been performed."""


@dataclass(frozen=True)
class Tick:
    """Time went by."""


Event = (
    PeerProgressed
    | ProgramDiffers
    | Decision
    | ViewStarted
    | TrainingFinished
    | PeersLost
    | CoordinatorUnreachable
    | PeerNoticed
    | ProgramExiting
    | ProcessEnded
    | HostJoined
    | HostNoticed
    | HostLost
    | LeaderTookOver
    | Tick
)


# Those that a peer reports to the agent that leads.
ReportedEvent = PeerProgressed | Decision | ViewStarted | PeersLost | PeerNoticed | ProgramExiting


@dataclass(frozen=True)
class Spawn:
    """Start a peer.

    Args:
        peer: Its id.
        host: The number of the host that starts it.
        leaving: The peers of that host that leave: it may take their processors.
        joins: True if it joins a view, and so receives the state of the others instead of a checkpoint.
        threads: The threads of every peer of the job within an op; 0: as its host has them.
    """

    peer: int
    host: int = 0
    leaving: tuple[int, ...] = ()
    joins: bool = True
    threads: int = 0


@dataclass(frozen=True)
class Kill:
    """Kill the process of a peer."""

    peer: int
    reason: str


@dataclass(frozen=True)
class AdmitFirstView:
    """Admit these peers to the first view."""

    view: View


@dataclass(frozen=True)
class AdmitPhase:
    """Admit these peers to the first view of a phase.

    Args:
        view: The view; all its peers begin with the state of its rank 0.
        number: The number of the phase.
        target: The size that the job will have with the peers that are on their way; 0 if none are.
    """

    view: View
    number: int
    target: int


@dataclass(frozen=True)
class ComparePrograms:
    """Find out what differs in the program of ``other`` from that of the ``references``, of which one has to answer."""

    references: tuple[Peer, ...]
    other: Peer


@dataclass(frozen=True)
class ReportMachines:
    """Tell people that peers run on ``others`` (by id): machines that may round in another way than the usual one."""

    usual: str
    others: Mapping[int, str]


@dataclass(frozen=True)
class AdmitSurvivors:
    """Admit the survivors to a view.

    Args:
        view: The view.
        sources: Its ranks that hold the state; the others receive it from them.
        target: The size that the job will have with the replacements; 0 if none come.
        lost: The ends of the lost others, by id.
    """

    view: View
    sources: tuple[int, ...]
    target: int
    lost: Mapping[int, str]


@dataclass(frozen=True)
class AnnounceFailure:
    """Tell every peer: ``peer`` is gone (-1: none is), and views up to ``version`` are broken, as ``how`` says."""

    peer: int
    version: int
    how: str


@dataclass(frozen=True)
class Fail:
    """End the job.

    Args:
        peer: The peer whose end is the root cause; -1 for none.
        reason: The way in which it ended.
        late: True if a deadline expired.
        others: The ends of others that were lost with it, by id.
        code: The exit code of the job, where it is known; then no other cause is looked for.
        chosen: True if the program chose the code, by ``sys.exit``.
        kind: The problem of a peer whose process has not ended: for example, it lost others, whose end is the root
            then.
    """

    peer: int
    reason: str
    late: bool = False
    others: Mapping[int, str] = field(default_factory=dict)
    code: int | None = None
    chosen: bool = False
    kind: ExitKind | None = None


@dataclass(frozen=True)
class ReleaseHost:
    """Let a host go that was given notice: nobody runs on it any more."""

    host: int


@dataclass(frozen=True)
class Done:
    """Every process has ended well."""


Command = (
    Spawn
    | Kill
    | AdmitFirstView
    | AdmitPhase
    | ComparePrograms
    | ReportMachines
    | AdmitSurvivors
    | AnnounceFailure
    | Asked
    | JoinerOffer
    | Fail
    | ReleaseHost
    | Done
)
