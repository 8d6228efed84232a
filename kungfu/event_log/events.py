"""The events of a job, one type for each kind of line in ``events.jsonl``.

The class says what happened, its tag is the word under ``event`` in the file, and its fields are the keys of the line.
`kungfu.event_log.codec` writes and reads the lines, and ``docs/events.schema.json`` is their JSON schema. A kind or a
key that is added, removed or changes its meaning needs another `RECORD_VERSION`.

Peers are given by their ids, which never change in a job, unless a field says rank. Times are seconds since 1970,
durations are seconds. ``None`` is what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

__all__ = [
    "RECORD_VERSION",
    "AnyEvent",
    "BrokenEvent",
    "CalledEvent",
    "CheckpointEvent",
    "DecisionEvent",
    "DevicesEvent",
    "DismissedEvent",
    "DissentEvent",
    "EndedEvent",
    "FailedEvent",
    "FinishedEvent",
    "FiniteAgainEvent",
    "GapEvent",
    "HeldEvent",
    "HostJoinedEvent",
    "HostLeftEvent",
    "HostLostEvent",
    "HostNoticedEvent",
    "LateEvent",
    "LeaderEvent",
    "LoggedEvent",
    "LostEvent",
    "MachinesDifferEvent",
    "MissingEvent",
    "NotFiniteEvent",
    "NoticedEvent",
    "Number",
    "OfferedEvent",
    "PeerEndedEvent",
    "Percentiles",
    "ProgramEndedEvent",
    "RecordEvent",
    "RecoveredEvent",
    "RefusedEvent",
    "RegroupingEvent",
    "RequestEvent",
    "RescaleEvent",
    "RoundedEvent",
    "RoundedVariable",
    "RuleEvent",
    "SetEvent",
    "ShadowDissentEvent",
    "ShadowEvent",
    "SpanEvent",
    "SpanPart",
    "SpawnedEvent",
    "StartedEvent",
    "SupersededEvent",
    "UnheardEvent",
    "UnrecordedEvent",
    "ViewEvent",
]

RECORD_VERSION = 1

# JSON knows no NaN and no infinity: in a file they are words.
Number = float | Literal["NaN", "Infinity", "-Infinity"]
Saw = Mapping[str, Number | None]


class LoggedEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """One line of ``events.jsonl``. ``time`` is stamped by the agent that writes it first."""

    time: float | None = None


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


class HostJoinedEvent(LoggedEvent, frozen=True, kw_only=True, tag="host"):
    """A host is in the job; ``pid`` is that of its agent."""

    host: int
    name: str
    pid: int


class HostNoticedEvent(LoggedEvent, frozen=True, kw_only=True, tag="host noticed"):
    """A host will be taken away: its agent got this signal."""

    host: int
    name: str
    signal: str


class HostLeftEvent(LoggedEvent, frozen=True, kw_only=True, tag="host left"):
    """A host has left the job, in good order."""

    host: int
    name: str
    why: str


class HostLostEvent(LoggedEvent, frozen=True, kw_only=True, tag="host lost"):
    """A host is given up, with its peers."""

    host: int
    name: str
    why: str


class LeaderEvent(LoggedEvent, frozen=True, kw_only=True, tag="head"):
    """The agent of this host has been elected, and leads the job from now on."""

    host: int
    name: str
    term: int


class DevicesEvent(LoggedEvent, frozen=True, kw_only=True, tag="devices"):
    """The devices of a host are not one for each of its slots."""

    devices: tuple[str, ...]
    slots: int
    host: int | None = None


class RequestEvent(LoggedEvent, frozen=True, kw_only=True, tag="request"):
    """A request from outside has come to this ``state`` in view ``view``, ``seconds`` after it was asked."""

    id: str
    request: str
    state: str
    reason: str
    view: int
    seconds: float


# ---- peers and views -------------------------------------------------------------------------------------------------


class SpawnedEvent(LoggedEvent, frozen=True, kw_only=True, tag="spawned"):
    """A peer's process was started; ``host`` only where there are several."""

    peer: int
    pid: int
    host: int | None = None


class OfferedEvent(LoggedEvent, frozen=True, kw_only=True, tag="offered"):
    """Peers are ready, and the leader is asked to admit them."""

    peers: tuple[int, ...]


class MissingEvent(LoggedEvent, frozen=True, kw_only=True, tag="missing"):
    """Peers that were being prepared never got ready."""

    peers: tuple[int, ...]
    reason: str


class DismissedEvent(LoggedEvent, frozen=True, kw_only=True, tag="dismissed"):
    """A peer's process is ended by its agent."""

    peer: int
    reason: str


class NoticedEvent(LoggedEvent, frozen=True, kw_only=True, tag="noticed"):
    """A peer was told by its platform that it will be taken away."""

    peer: int


class UnheardEvent(LoggedEvent, frozen=True, kw_only=True, tag="unheard"):
    """A message to a peer was not answered."""

    peer: int
    error: str


class PeerEndedEvent(LoggedEvent, frozen=True, kw_only=True, tag="peer ended"):
    """A peer's process has ended; ``how`` as in "exit code 0" or "killed by SIGKILL"."""

    peer: int
    how: str


class ProgramEndedEvent(LoggedEvent, frozen=True, kw_only=True, tag="program ended"):
    """A peer's program ends, or has left its training loop, while ``others`` peers train.

    ``how`` is "loop", "exit" or the kind of its exception.
    """

    peer: int
    rank: int | None
    step: int
    others: int
    how: str
    error: str


class LostEvent(LoggedEvent, frozen=True, kw_only=True, tag="lost"):
    """A peer of the view is lost; ``error`` is what it said last."""

    peer: int
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


class Percentiles(Struct, frozen=True, omit_defaults=True):
    """How long something took, ``count`` times: percentiles and the longest, in seconds; ``None`` of none."""

    count: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class FinishedEvent(LoggedEvent, frozen=True, kw_only=True, tag="finished"):
    """A peer's training is over; ``leaving``: by a decision, and the others go on.

    ``steps`` are those of the job, ``traces`` counts how often its step was compiled.
    """

    peer: int
    leaving: bool
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


class FiniteAgainEvent(LoggedEvent, frozen=True, kw_only=True, tag="finite again"):
    """A value is a number again, for the first time since step ``since``."""

    what: str
    step: int
    since: int


# ---- rules and what comes of them ------------------------------------------------------------------------------------


class RuleEvent(LoggedEvent, frozen=True, kw_only=True):
    """A rule fired after ``step`` steps; ``saw`` are the values that it saw, by name."""

    step: int
    rule: str
    saw: Saw


class DecisionEvent(RuleEvent, frozen=True, kw_only=True, tag="decision"):
    """A rule asked for ``asked`` peers in place of ``size``; ``done`` says what the barrier made of it.

    ``won`` and ``lost`` name the policies behind a combined rule by whether their target was taken, ``peers`` are
    those that the rule named, ``when`` they leave: "now" or "replaced".
    """

    size: int
    asked: int
    done: str
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    when: str = ""


class SupersededEvent(RuleEvent, frozen=True, kw_only=True, tag="superseded"):
    """Nothing came of what a rule asked for, since ``by`` came before it. Fields as in a decision."""

    asked: int
    by: str
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    when: str = ""


class CalledEvent(RuleEvent, frozen=True, kw_only=True, tag="called"):
    """A hook was called, and asked for a size or ``None``; ``ignored`` says why that is passed over, where it is."""

    asked: int | None
    ignored: str = ""


class SetEvent(RuleEvent, frozen=True, kw_only=True, tag="set"):
    """A barrier changed a setting (``what``; "stop" ends training) to a value, over so many ``unit``s."""

    what: str
    to: Number | None
    over: Number
    unit: str


class ShadowEvent(RuleEvent, frozen=True, kw_only=True, tag="shadow"):
    """A rule in the shadow would have asked for this; ``action`` is the class of its action."""

    action: str
    asked: Number | None
    ranks: tuple[int, ...]


class HeldEvent(RuleEvent, frozen=True, kw_only=True, tag="held"):
    """The job's budget of rescales holds back what a rule asked for; ``action`` is the class of its action."""

    action: str
    asked: Number | None
    ranks: tuple[int, ...]


class RefusedEvent(LoggedEvent, frozen=True, kw_only=True, tag="refused"):
    """The peers that a change was to have cannot be had; ``rule`` is empty where no rule asked for it."""

    rule: str
    asked: int
    size: int
    reason: str


class RescaleEvent(LoggedEvent, frozen=True, kw_only=True, tag="rescale"):
    """The membership changed after ``step`` steps, and training stood still for ``stop_s``.

    ``parts`` has the seconds of each part; those of spawn and ready went on beside training, and the first step's came
    after the stop.
    """

    step: int
    rule: str
    decided_at: int | None
    before: int = field(name="from")
    after: int = field(name="to")
    view: int
    joined: tuple[int, ...]
    left: tuple[int, ...]
    global_batch_size: int
    stop_s: float
    parts: Mapping[str, float]


class RecoveredEvent(LoggedEvent, frozen=True, kw_only=True, tag="recovered"):
    """Peers were ``lost``, by id with how, and the others train again from ``step`` with the state of ``state_of``.

    ``redone`` steps are done once more. ``stop_s`` goes from the end of the last step to the end of the next one, less
    a step: ``noticed_s`` until the loss was known, ``regrouped_s`` until training could go on. ``step_s`` is the median
    of the steps before.
    """

    step: int
    before: int = field(name="from")
    after: int = field(name="to")
    view: int
    lost: Mapping[str, str]
    noticed_by: str
    state_of: int
    redone: int
    target: int
    global_batch_size: int
    stop_s: float
    noticed_s: float
    regrouped_s: float
    step_s: float
    parts: Mapping[str, float]


class SpanPart(Struct, frozen=True, omit_defaults=True):
    """The seconds ``s`` of a part of a stop, and of the parts within it."""

    name: str
    s: float
    parts: tuple[SpanPart, ...] = ()


class SpanEvent(LoggedEvent, frozen=True, kw_only=True, tag="span"):
    """The seconds ``s`` that a change of the membership (``what``) took one peer, part by part."""

    what: str
    peer: int
    view: int
    step: int
    s: float
    parts: tuple[SpanPart, ...] = ()


class CheckpointEvent(LoggedEvent, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint of ``size_bytes`` is in ``path``, or could not be written there: then ``error`` says why.

    Training stood still for ``stop_s``, the writing took ``seconds``.
    """

    step: int
    rule: str
    path: str
    size_bytes: int | None = field(name="bytes", default=None)
    error: str = ""
    seconds: float
    stop_s: float


AnyEvent = (
    RecordEvent | GapEvent | UnrecordedEvent
    | StartedEvent | EndedEvent | FailedEvent | HostJoinedEvent | HostNoticedEvent | HostLeftEvent | HostLostEvent
    | LeaderEvent | DevicesEvent | RequestEvent
    | SpawnedEvent | OfferedEvent | MissingEvent | DismissedEvent | NoticedEvent | UnheardEvent | PeerEndedEvent
    | ProgramEndedEvent | LostEvent | BrokenEvent | RegroupingEvent | ViewEvent | FinishedEvent | LateEvent
    | MachinesDifferEvent | RoundedEvent | DissentEvent | ShadowDissentEvent | NotFiniteEvent | FiniteAgainEvent
    | DecisionEvent | SupersededEvent | CalledEvent | SetEvent | ShadowEvent | HeldEvent | RefusedEvent
    | RescaleEvent | RecoveredEvent | SpanEvent | CheckpointEvent
)  # fmt: skip
