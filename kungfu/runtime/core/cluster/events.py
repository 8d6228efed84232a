"""The events that the agent receives, and the commands that it performs: values only.

The commands `Asked` (a request) and `JoinerOffer` (an offer of joiners) are sent to the coordinator of the view, which
carries them out at a barrier. The decision of that barrier (`Decision`) is an event if it changes the number of
processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kungfu.runtime.core.failure import Exit, ExitKind
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.program_identity import Identity
from kungfu.runtime.core.request import Asked
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View

SpareState = Literal["ready", "wanted", "lost"]


@dataclass(frozen=True)
class PeerProgressed:
    """A joiner has called ``attach`` or, if ``ready``, reports its program and waits to be admitted.

    A former member also reports that it is ready, before each phase after the first. ``phase`` is the phase for which
    the peer is ready.
    """

    peer: Peer
    ready: bool
    identity: Identity = field(default_factory=Identity)
    phase: int = 1
    memory_bytes: int = 0  # the memory of the process that no other process shares, once the peer is ready


@dataclass(frozen=True)
class SpareLoaded:
    """A "loaded" spare has loaded TensorFlow and Keras, and waits."""

    peer: int
    memory_bytes: int = 0  # as in `PeerProgressed`


@dataclass(frozen=True)
class ProgramDiffers:
    """A joiner does not run the program of the job; ``how`` describes the difference."""

    peer: int
    how: str


@dataclass(frozen=True)
class ViewStarted:
    """A view has begun to train, with these terms."""

    view: View
    terms: Terms = field(default_factory=Terms)


@dataclass(frozen=True)
class TrainingFinished:
    """A peer's training is over: training is complete, or a view removed the peer."""

    peer: int
    leaving: bool  # True if a view removed the peer
    phase: int = 0  # the number of the phase that is over, after which another may follow; 0 if none can


@dataclass(frozen=True)
class LossReport:
    """The report of a peer that has lost other peers."""

    version: int  # the version of the newest view that the peer knows
    step: int  # the number of steps that the peer has done
    holds: bool  # True if the peer holds the state, registered values included; a joiner does not before its first step
    error: str  # the error by which the peer noticed the loss
    suspects: tuple[int, ...] = ()  # the ids of the peers that the error names
    late: bool = False  # True if a deadline expired; else a connection ended
    # The stage between ``step`` and the next step: 0 in the barrier of ``step``, 1 after this barrier, plus one for
    # each exchange of the peers that has begun since, and one for each exchange that has ended.
    stage: int = 0
    # The checksum of the replicated state once an exchange has begun, since the peers' states may then differ.
    digest: int = 0


@dataclass(frozen=True)
class PeersLost:
    """A peer has lost other peers, has left the all-reduce of its view, and waits for a new view."""

    peer: int
    report: LossReport


@dataclass(frozen=True)
class CoordinatorUnreachable:
    """The coordinator of this view of survivors has ended or did not answer in time, so no peer was admitted."""

    view: View


@dataclass(frozen=True)
class PeerNoticed:
    """A peer received a preemption notice from its platform."""

    peer: int


@dataclass(frozen=True)
class ProgramExiting:
    """A peer reports that its program exits or has left its training loop; its process still runs."""

    peer: int
    exit: Exit


@dataclass(frozen=True)
class ProcessEnded:
    """A process ended, with its exit code (if negative, the number of a signal)."""

    peer: int
    code: int


@dataclass(frozen=True)
class HostJoined:
    """A host joined the job, with slots for ``slots`` peers."""

    host: int
    slots: int


@dataclass(frozen=True)
class HostNoticed:
    """A host got a preemption notice: it will be taken away with all its peers. At least one other host remains."""

    host: int


@dataclass(frozen=True)
class HostLost:
    """A host is lost, with all its peers."""

    host: int
    how: str


@dataclass(frozen=True)
class LeaderTookOver:
    """Another agent leads now; the last commands of the previous leader may not have been performed."""


@dataclass(frozen=True)
class Tick:
    """A moment at which deadlines are checked."""


Event = (
    PeerProgressed
    | SpareLoaded
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


# The events that a peer reports to the leading agent.
ReportedEvent = PeerProgressed | Decision | ViewStarted | PeersLost | PeerNoticed | ProgramExiting


@dataclass(frozen=True)
class Spawn:
    """Starts a peer."""

    peer: int
    host: int = 0  # the number of the host that starts the peer
    leaving: tuple[int, ...] = ()  # the leaving peers of that host, whose processors the new peer may use
    joins: bool = True  # True if the peer joins a view, and so receives the state from others instead of a checkpoint
    threads: int = 0  # the threads of every peer of the job within an op; 0 for the default of the host
    # True if the process only loads TensorFlow and Keras, and waits for a second command with its peer's id.
    loads_only: bool = False


@dataclass(frozen=True)
class ReportSpare:
    """Notifies the user of a change of a spare: it is ready, is wanted and so a joiner from now on, or has ended."""

    peer: int
    state: SpareState
    how: str = ""  # the way in which the spare has ended
    retry_s: float | None = None  # the earliest start of another spare after the end, in seconds from now
    memory_bytes: int = 0  # the memory of a ready spare that no other process shares


@dataclass(frozen=True)
class Kill:
    """Kills the process of a peer."""

    peer: int
    reason: str


@dataclass(frozen=True)
class AdmitFirstView:
    """Admits the first peers of the job to ``view``, the first view of the job."""

    view: View


@dataclass(frozen=True)
class AdmitPhase:
    """Admits peers to ``view``, the first view of a phase."""

    view: View  # the view; all its peers begin with the state of rank 0
    number: int
    target: int  # the size of the job once the joiners on their way have come; 0 if there are none


@dataclass(frozen=True)
class ComparePrograms:
    """Finds how the program of ``other`` differs from that of the first peer in ``references`` that answers."""

    references: tuple[Peer, ...]
    other: Peer


@dataclass(frozen=True)
class ReportMachines:
    """Notifies the user that the machines of ``others`` differ from the ``usual`` one and may round differently."""

    usual: str
    others: Mapping[int, str]


@dataclass(frozen=True)
class AdmitSurvivors:
    """Admits the survivors of a loss to ``view``."""

    view: View
    sources: tuple[int, ...]  # the ranks that hold the state and send it to the others
    target: int  # the size of the job once the replacements have come; 0 if none come
    lost: Mapping[int, str]  # the ends of the lost peers, by id


@dataclass(frozen=True)
class AnnounceFailure:
    """Notifies peers that ``peer`` (-1: none) is lost and views up to ``version`` are broken; ``how`` is the reason."""

    peer: int
    version: int
    how: str


@dataclass(frozen=True)
class Fail:
    """Ends the job with a failure."""

    peer: int  # the id of the peer whose end is the root cause; -1 for none
    reason: str
    late: bool = False  # True if a deadline expired
    # The ends of peers that were lost together with this peer, by id.
    others: Mapping[int, str] = field(default_factory=dict)
    code: int | None = None  # the exit code of the job, if it is known; then no other cause is searched for
    chosen: bool = False  # True if the program chose the code, by ``sys.exit``
    # The kind of failure of a peer whose process still runs. If that peer lost others, for example, the end of the
    # lost peers is the root cause.
    kind: ExitKind | None = None
    is_loss: bool = False  # True if hosts or all peers were lost, so that the program is not at fault


@dataclass(frozen=True)
class ReleaseHost:
    """Releases a host that got a preemption notice and no longer runs a process."""

    host: int


@dataclass(frozen=True)
class Done:
    """Ends the job without a failure: every process has ended well."""


Command = (
    Spawn
    | ReportSpare
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
