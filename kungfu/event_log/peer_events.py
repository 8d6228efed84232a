"""Events of peers and views, and of differences between peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct, field

from kungfu.event_log.logged_event import LoggedEvent, Number, Topic
from kungfu.event_log.values import counted, duration, figure, label, peers_named, size_in_bytes

__all__ = [
    "BrokenEvent", "CaughtUpEvent", "DismissedEvent", "DissentEvent", "FinishedEvent", "FiniteAgainEvent", "LateEvent",
    "LostEvent", "MachinesDifferEvent", "MissingEvent", "NotFiniteEvent", "NoticedEvent", "OfferedEvent",
    "PeerEndedEvent", "Percentiles", "PhaseEvent", "ProgramEndedEvent", "RegroupingEvent", "RoundedEvent",
    "RoundedVariable", "ShadowDissentEvent", "SpareEvent", "SpawnedEvent", "TookOverEvent", "UndefinedEvent",
    "UnheardEvent", "ViewEvent",
]  # fmt: skip

# ---- peers and views -------------------------------------------------------------------------------------------------


class PeerEvent(LoggedEvent, frozen=True, kw_only=True):
    """An event about one peer."""

    peer: int

    @property
    def named(self) -> str:
        """The peer as text."""
        return f"peer {self.peer}"


class SpawnedEvent(PeerEvent, frozen=True, kw_only=True, tag="spawned"):
    """A peer's process was started, or runs its program now; ``host`` is set in a job of several hosts.

    If ``spare``, the job keeps the peer as a spare, until a `SpareEvent` with the state "wanted".
    """

    pid: int
    host: int | None = None
    spare: bool = False


class SpareEvent(PeerEvent, frozen=True, kw_only=True, tag="spare"):
    """A spare, a peer that gets ready before the job wants it, has changed its state.

    Attributes:
        state: "ready": it waits; "wanted": it is a joiner from now on; or "lost": it has ended, as ``how`` describes.
        how: The way in which it ended; empty in other states.
        retry_s: The earliest start of another spare after the end, in seconds from the event; None in other states.
        memory_bytes: The memory of its process that no other process shares, once it is ready; 0 in other states.
    """

    state: str
    how: str = ""
    retry_s: float | None = None
    memory_bytes: int = 0

    def one_line(self) -> str:
        match self.state:
            case "ready":
                return f"{self.named} waits as a spare, with {size_in_bytes(self.memory_bytes)} of memory"
            case "wanted":
                return f"{self.named}, a spare, is wanted"
        return f"{self.named}, a spare, has ended ({self.how}); another starts in {duration(self.retry_s)}"


class OfferedEvent(LoggedEvent, frozen=True, kw_only=True, tag="offered"):
    """Joiners are ready to train, and the coordinator is asked to admit them."""

    peers: tuple[int, ...]


class MissingEvent(LoggedEvent, frozen=True, kw_only=True, tag="missing"):
    """Peers that the job waited for will never be ready, because of ``reason``."""

    topic: ClassVar[Topic] = "loss"
    peers: tuple[int, ...]
    reason: str

    def one_line(self) -> str:
        return f"{peers_named(self.peers)} never got ready: {self.reason}"


class DismissedEvent(PeerEvent, frozen=True, kw_only=True, tag="dismissed"):
    """An agent ends the process of a peer."""

    reason: str

    def one_line(self) -> str:
        return f"{self.named} was dismissed: {self.reason}"


class NoticedEvent(PeerEvent, frozen=True, kw_only=True, tag="noticed"):
    """A peer was notified by its platform that the peer will be preempted."""

    def one_line(self) -> str:
        return f"{self.named} got a notice: it leaves at the next barrier"


class UnheardEvent(PeerEvent, frozen=True, kw_only=True, tag="unheard"):
    """A peer did not answer a message."""

    error: str

    def one_line(self) -> str:
        return f"{self.named} did not answer: {self.error}"


class PeerEndedEvent(PeerEvent, frozen=True, kw_only=True, tag="peer ended"):
    """A peer's process has ended; ``how`` reads like "exit code 0" or "killed by SIGKILL"."""

    topic: ClassVar[Topic] = "loss"
    how: str

    def headline(self) -> str:
        return "" if self.how == "exit code 0" else f"{self.named} ended: {self.how}"


class ProgramEndedEvent(PeerEvent, frozen=True, kw_only=True, tag="program ended"):
    """A peer's program ends, or has left its training loop, while others train.

    Attributes:
        rank: The rank of the peer; None outside the view.
        step: The number of steps that the peer has done.
        others: The number of other peers that train.
        how: "loop" if the program left its training loop, "exit" if it exited, else the kind of its exception.
        error: The exception; empty if there is none.
    """

    topic: ClassVar[Topic] = "trouble"
    rank: int | None
    step: int
    others: int
    how: str
    error: str

    def one_line(self) -> str:
        """The end of a program in one line; after an error, a later event reports the peer's loss or the job's end."""
        peer, step = f"rank {self.rank} ({self.named})", figure(self.step)
        alike = (
            ": if others train on, they do so without it, and another peer takes its place; to end training on all "
            "peers, decide it alike on all of them, or let a policy stop"
        )
        meaning = alike if self.others else ""
        # The program continues without training.
        if self.how == "loop":
            return f"{peer} left its training loop (by break or return, say) after step {step}, before its end{meaning}"
        # The process has ended without an error.
        if self.how == "exit":
            by = "by break, return or sys.exit"
            return f"{peer} ended its program ({by}) after step {step}, before the end of training{meaning}"
        return f"the program of {peer} ends after step {step}: {self.error}"


class LostEvent(PeerEvent, frozen=True, kw_only=True, tag="lost"):
    """A peer of the view is lost; ``error`` is its last error message."""

    topic: ClassVar[Topic] = "loss"
    rank: int | None
    how: str
    error: str

    def one_line(self) -> str:
        return self.headline() + ("" if self.error in self.how else f" ({self.error})")

    def headline(self) -> str:
        lost = self.named if self.rank is None else f"rank {self.rank} ({self.named})"
        return f"{lost} is lost: {self.how}"

    def details(self) -> tuple[str, ...]:
        """The last error of a peer that ended during training, and the path of its log."""
        last = [] if self.error in self.how else [f"its last error: {self.error}"]
        return *last, f"what it printed is in peers/peer-{self.peer}.log"


class BrokenEvent(LoggedEvent, frozen=True, kw_only=True, tag="broken"):
    """The peers of views up to ``version`` cannot continue in these views, although no process has ended."""

    version: int
    why: str

    def one_line(self) -> str:
        return f"view {self.version} is broken: {self.why}"


class RegroupingEvent(LoggedEvent, frozen=True, kw_only=True, tag="regrouping"):
    """The surviving ``peers`` form view ``version``; replacements will restore the size ``target``."""

    version: int
    peers: tuple[int, ...]
    lost: Mapping[str, str]
    target: int

    def one_line(self) -> str:
        more = self.target - len(self.peers)
        coming = f"; {counted(more, 'replacement')} will come" if more > 0 else ""
        regroup = "regroups" if len(self.peers) == 1 else "regroup"
        return f"{peers_named(self.peers)} {regroup} in view {self.version}{coming}"


class ViewEvent(LoggedEvent, frozen=True, kw_only=True, tag="view"):
    """A view is in force: its peers, in rank order, have the same state and train."""

    topic: ClassVar[Topic] = "view"
    version: int
    peers: tuple[int, ...]

    def one_line(self) -> str:
        """The view in one line.

        >>> ViewEvent(version=2, peers=(0, 1, 2)).one_line()
        'view 2: 3 peers train'
        """
        train = "trains" if len(self.peers) == 1 else "train"
        return f"view {self.version}: {counted(len(self.peers), 'peer')} {train}"

    def headline(self) -> str:
        peers = f"{counted(len(self.peers), 'peer')}: {peers_named(self.peers)}"
        # The first view does not follow another view.
        if self.version == 1:
            return f"training begins with {peers}"
        return f"view {self.version} is in force, {peers}"


class PhaseEvent(LoggedEvent, frozen=True, kw_only=True, tag="phase"):
    """The program trains again, by another ``fit``: phase ``phase`` begins with view ``view``. Phase 1 has no event."""

    phase: int
    view: int
    peers: tuple[int, ...]

    def headline(self) -> str:
        """The start of a phase for ``kungfu why``; the screen shows the view if its peers are others."""
        peers = f"{counted(len(self.peers), 'peer')} {'is' if len(self.peers) == 1 else 'are'}"
        return f"phase {self.phase} of the program: {peers} ready to train again"


class CaughtUpEvent(PeerEvent, frozen=True, kw_only=True, tag="caught up"):
    """A joiner has read ``batches`` batches to catch up with the other peers, which trained in the meantime."""

    batches: int
    seconds: float

    def one_line(self) -> str:
        batches = f"{figure(self.batches)} {'batch' if self.batches == 1 else 'batches'}"
        read = f"read {batches} of its data in {duration(self.seconds)}"
        return f"{self.named} {read} to come to where training is, while the others trained"


class TookOverEvent(PeerEvent, frozen=True, kw_only=True, tag="took over"):
    """A peer took over a part of the data, and read ``samples`` samples to reach its offset; the other peers waited."""

    samples: int
    seconds: float

    def one_line(self) -> str:
        read = f"read {counted(self.samples, 'sample')} in {duration(self.seconds)}"
        return f"{self.named} {read} to come to its place in a part of the data that it took over; all waited"


class Percentiles(Struct, frozen=True, omit_defaults=True):
    """The percentiles and the maximum of ``count`` durations, in seconds; all are ``None`` if ``count`` is 0."""

    count: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class FinishedEvent(PeerEvent, frozen=True, kw_only=True, tag="finished"):
    """A peer's training is over.

    Attributes:
        leaving: True if a decision removed the peer, and the other peers continue.
        phase: The finished phase of a program that may train again; 0 for other programs.
        steps: The number of steps that the job has done.
        traces: The number of times that the peer's step was compiled.
        step_s: The percentiles of the durations of its steps.
        barrier_s: The percentiles of the durations of its barriers.
        stop_s: The percentiles of the times for which its training stopped.
    """

    leaving: bool
    phase: int = 0
    steps: int
    traces: int
    step_s: Percentiles | None = None
    barrier_s: Percentiles | None = None
    stop_s: Percentiles | None = None

    def one_line(self) -> str:
        # Only a program that may train again, by another fit, has phases.
        through = f"has trained to the end of fit {self.phase}" if self.phase else "has trained to the end"
        return f"{self.named} {'has left the job' if self.leaving else through} after {counted(self.steps, 'step')}"

    def headline(self) -> str:
        # The conclusion counts the peers that reached the end of training.
        return self.one_line() if self.leaving else ""


class LateEvent(LoggedEvent, frozen=True, kw_only=True, tag="late"):
    """Some ``ranks`` are alive but late in an operation after ``step`` steps, and the other ranks wait."""

    topic: ClassVar[Topic] = "trouble"
    ranks: tuple[int, ...]
    where: str = field(name="in")
    step: int
    waited_s: float

    def one_line(self) -> str:
        ranks, are, they = ("ranks", "are", "they are") if len(self.ranks) > 1 else ("rank", "is", "it is")
        names = " and ".join(str(rank) for rank in self.ranks)
        where = f"{self.where} after step {figure(self.step)}"
        return f"{ranks} {names} {are} late in {where}: {duration(self.waited_s)} so far, but {they} alive"


# ---- differences between peers ---------------------------------------------------------------------------------------


class MachinesDifferEvent(LoggedEvent, frozen=True, kw_only=True, tag="machines differ"):
    """The processor or the number of threads of some peers (``others``, by id) differs from the ``usual`` one."""

    usual: str
    others: Mapping[str, str]

    def one_line(self) -> str:
        others = "; ".join(f"peer {peer}: {machine}" for peer, machine in self.others.items())
        return (
            f"peers have other processors or threads than the job began with ({self.usual}), and round in another way: "
            f"{others}; what differs by that is evened out at barriers"
        )


class RoundedVariable(Struct, frozen=True):
    """The largest difference of a variable from rank 0's values, and the largest value of the variable."""

    name: str
    difference: Number
    largest: Number


class RoundedEvent(LoggedEvent, frozen=True, kw_only=True, tag="rounded"):
    """Variables differed by rounding between peers, and now have rank 0's values.

    Attributes:
        ranks: The ranks that differed.
        variables: The number of differing variables.
        widest: The variables that differed most.
        view: The version of the view that began at the comparison; None if the view had begun before.
        again: True if all of `widest` were reported before.
    """

    ranks: tuple[int, ...]
    variables: int
    widest: tuple[RoundedVariable, ...]
    view: int | None = None
    again: bool = False

    def one_line(self) -> str:
        # The same variables were reported before.
        if self.again:
            return ""
        widest = ", ".join(
            f"{one.name} by {figure(one.difference)} (largest value {figure(one.largest)})" for one in self.widest
        )
        view = f" of view {self.view}" if self.view else ""
        variables, are = counted(self.variables, "variable"), "is" if self.variables == 1 else "are"
        return f"{variables} differed by rounding between the peers{view} and {are} now rank 0's: {widest}"


class DissentEvent(LoggedEvent, frozen=True, kw_only=True, tag="dissent"):
    """The peers' rules made different ``requests`` (text, by rank) at a barrier; the request of rank 0 is used."""

    topic: ClassVar[Topic] = "trouble"
    view: int
    requests: Mapping[str, str]

    def one_line(self) -> str:
        requests = ", ".join(f"rank {rank} {request or 'nothing'}" for rank, request in self.requests.items())
        return f"the peers' rules differ in view {self.view} (rank 0's counts): {requests}"


class ShadowDissentEvent(LoggedEvent, frozen=True, kw_only=True, tag="shadow dissent"):
    """The shadow rules of the peers would have made different requests; ``shadows`` lists them as text, by rank."""

    view: int
    shadows: Mapping[str, str]

    def one_line(self) -> str:
        shadows = "; ".join(f"rank {rank}: {what or 'nothing'}" for rank, what in self.shadows.items())
        return f"rules in the shadow differ between the peers of view {self.view}: {shadows}"


class NotFiniteEvent(LoggedEvent, frozen=True, kw_only=True, tag="not finite"):
    """The value named ``what``, such as the loss, is NaN or infinite from ``step`` on."""

    topic: ClassVar[Topic] = "trouble"
    what: str
    step: int
    value: Number

    def one_line(self) -> str:
        return f"step {figure(self.step)}: the {self.what} is {figure(self.value)}"


class UndefinedEvent(LoggedEvent, frozen=True, kw_only=True, tag="undefined"):
    """A named signal of a policy was NaN in many steps.

    Attributes:
        step: The newest step.
        what: The name of the signal.
        since: The first step in which the signal was a number.
        missing: The number of steps since then in which the signal was NaN.
        of: The number of steps since then.
    """

    topic: ClassVar[Topic] = "trouble"
    step: int
    what: str
    since: int
    missing: int
    of: int

    def one_line(self) -> str:
        share = f"{figure(self.missing)} of {counted(self.of, 'step')} since step {figure(self.since)}"
        return f"step {figure(self.step)}: the {label(self.what)} was NaN in {share}"


class FiniteAgainEvent(LoggedEvent, frozen=True, kw_only=True, tag="finite again"):
    """The value named ``what`` is finite again, for the first time since step ``since``."""

    what: str
    step: int
    since: int

    def one_line(self) -> str:
        since = f"for the first time since step {figure(self.since)}"
        return f"step {figure(self.step)}: the {self.what} is a number again, {since}"
