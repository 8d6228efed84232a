"""Events of peers and views, and of what differs between peers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from kungfu.event_log.logged_event import LoggedEvent, Number

__all__ = [
    "BrokenEvent",
    "CaughtUpEvent",
    "DismissedEvent",
    "DissentEvent",
    "FinishedEvent",
    "FiniteAgainEvent",
    "LateEvent",
    "LostEvent",
    "MachinesDifferEvent",
    "MissingEvent",
    "NotFiniteEvent",
    "NoticedEvent",
    "OfferedEvent",
    "PeerEndedEvent",
    "PeerEvent",
    "Percentiles",
    "PhaseEvent",
    "ProgramEndedEvent",
    "RegroupingEvent",
    "RoundedEvent",
    "RoundedVariable",
    "ShadowDissentEvent",
    "SpawnedEvent",
    "TookOverEvent",
    "UndefinedEvent",
    "UnheardEvent",
    "ViewEvent",
]


# ---- peers and views -------------------------------------------------------------------------------------------------


class PeerEvent(LoggedEvent, frozen=True, kw_only=True):
    """Something about one peer."""

    peer: int


class SpawnedEvent(PeerEvent, frozen=True, kw_only=True, tag="spawned"):
    """A peer's process was started; ``host`` only where there are several."""

    pid: int
    host: int | None = None


class OfferedEvent(LoggedEvent, frozen=True, kw_only=True, tag="offered"):
    """Peers are ready, and the coordinator is asked to admit them."""

    peers: tuple[int, ...]


class MissingEvent(LoggedEvent, frozen=True, kw_only=True, tag="missing"):
    """Peers that were being prepared never got ready."""

    peers: tuple[int, ...]
    reason: str


class DismissedEvent(PeerEvent, frozen=True, kw_only=True, tag="dismissed"):
    """A peer's process is ended by its agent."""

    reason: str


class NoticedEvent(PeerEvent, frozen=True, kw_only=True, tag="noticed"):
    """A peer was told by its platform that it will be taken away."""


class UnheardEvent(PeerEvent, frozen=True, kw_only=True, tag="unheard"):
    """A message to a peer was not answered."""

    error: str


class PeerEndedEvent(PeerEvent, frozen=True, kw_only=True, tag="peer ended"):
    """A peer's process has ended; ``how`` as in "exit code 0" or "killed by SIGKILL"."""

    how: str


class ProgramEndedEvent(PeerEvent, frozen=True, kw_only=True, tag="program ended"):
    """A peer's program ends, or has left its training loop, while ``others`` peers train.

    ``how`` is "loop", "exit" or the kind of its exception.
    """

    rank: int | None
    step: int
    others: int
    how: str
    error: str


class LostEvent(PeerEvent, frozen=True, kw_only=True, tag="lost"):
    """A peer of the view is lost; ``error`` is what it said last."""

    rank: int | None
    how: str
    error: str


class BrokenEvent(LoggedEvent, frozen=True, kw_only=True, tag="broken"):
    """Views up to this version are broken, although no process has ended."""

    version: int
    why: str


class RegroupingEvent(LoggedEvent, frozen=True, kw_only=True, tag="regrouping"):
    """``peers`` survive, and form view ``version``; replacements come up to the size ``target``."""

    version: int
    peers: tuple[int, ...]
    lost: Mapping[str, str]
    target: int


class ViewEvent(LoggedEvent, frozen=True, kw_only=True, tag="view"):
    """A view is in force: its peers, in rank order, hold the same state and train."""

    version: int
    peers: tuple[int, ...]


class PhaseEvent(LoggedEvent, frozen=True, kw_only=True, tag="phase"):
    """The program trains again: its peers begin phase ``phase`` with view ``view``. Phase 1 is not told."""

    phase: int
    view: int
    peers: tuple[int, ...]


class CaughtUpEvent(PeerEvent, frozen=True, kw_only=True, tag="caught up"):
    """A joiner has read ``batches`` of data that it has no use for, to come to where the others are.

    They trained meanwhile: it does so before it is ready.
    """

    batches: int
    seconds: float


class TookOverEvent(PeerEvent, frozen=True, kw_only=True, tag="took over"):
    """A peer has read ``samples`` that others had trained on, to its place in a partition that it took over.

    The others waited for it meanwhile.
    """

    samples: int
    seconds: float


class Percentiles(Struct, frozen=True, omit_defaults=True):
    """How long something took, ``count`` times: percentiles and the longest, in seconds; ``None`` of none."""

    count: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class FinishedEvent(PeerEvent, frozen=True, kw_only=True, tag="finished"):
    """A peer's training is over; ``leaving``: by a decision, and the others go on.

    ``steps`` are those of the job, ``traces`` counts how often its step was compiled. ``phase`` is that which is over,
    of a program that may train again; 0 where it cannot.
    """

    leaving: bool
    phase: int = 0
    steps: int
    traces: int
    step_s: Percentiles | None = None
    barrier_s: Percentiles | None = None
    stop_s: Percentiles | None = None


class LateEvent(LoggedEvent, frozen=True, kw_only=True, tag="late"):
    """The others wait for these ranks, which are alive, in an operation after ``step`` steps."""

    ranks: tuple[int, ...]
    where: str = field(name="in")
    step: int
    waited_s: float


# ---- what differs between peers --------------------------------------------------------------------------------------


class MachinesDifferEvent(LoggedEvent, frozen=True, kw_only=True, tag="machines differ"):
    """Peers, by id, whose processor or threads are not the ``usual`` ones."""

    usual: str
    others: Mapping[str, str]


class RoundedVariable(Struct, frozen=True):
    """How far a variable was from rank 0's, beside its largest value."""

    name: str
    difference: Number
    largest: Number


class RoundedEvent(LoggedEvent, frozen=True, kw_only=True, tag="rounded"):
    """So many variables differed by rounding on these ranks, and have rank 0's values now.

    ``again``: each of the ``widest`` was told before.
    """

    ranks: tuple[int, ...]
    variables: int
    widest: tuple[RoundedVariable, ...]
    view: int | None = None
    again: bool = False


class DissentEvent(LoggedEvent, frozen=True, kw_only=True, tag="dissent"):
    """The rules of the peers ask for different things at one barrier; by rank, in words. Rank 0's request counts."""

    view: int
    wishes: Mapping[str, str]


class ShadowDissentEvent(LoggedEvent, frozen=True, kw_only=True, tag="shadow dissent"):
    """The rules in the shadow differ between peers; by rank, in words."""

    view: int
    shadows: Mapping[str, str]


class NotFiniteEvent(LoggedEvent, frozen=True, kw_only=True, tag="not finite"):
    """A value is no number from this step on."""

    what: str
    step: int
    value: Number


class UndefinedEvent(LoggedEvent, frozen=True, kw_only=True, tag="undefined"):
    """A named signal of a policy was no number in many steps.

    Attributes:
        step: The newest step.
        what: The name of the signal.
        since: The first step in which it was a number.
        missing: Steps since then in which it was none.
        of: All steps since then.
    """

    step: int
    what: str
    since: int
    missing: int
    of: int


class FiniteAgainEvent(LoggedEvent, frozen=True, kw_only=True, tag="finite again"):
    """A value is a number again, for the first time since step ``since``."""

    what: str
    step: int
    since: int
