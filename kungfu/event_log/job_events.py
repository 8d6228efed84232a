"""Events of the record itself, of the job and of its hosts."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from kungfu.event_log.logged_event import LoggedEvent, Topic
from kungfu.event_log.values import counted, duration, figure, held_words

__all__ = [
    "DevicesEvent", "EndedEvent", "FailedEvent", "GapEvent", "HostJoinedEvent", "HostLeftEvent", "HostLostEvent",
    "HostNoticedEvent", "LeaderEvent", "RecordEvent", "RequestEvent", "RestartedEvent", "SizeLimitsEvent",
    "StartedEvent", "StoreEvent", "UnrecordedEvent",
]  # fmt: skip

# ---- the record itself -----------------------------------------------------------------------------------------------


class RecordEvent(LoggedEvent, frozen=True, kw_only=True, tag="record"):
    """The first line of a record, with the version of its events."""

    version: int


class GapEvent(LoggedEvent, frozen=True, kw_only=True, tag="gap"):
    """``lines`` lines of ``file`` could not be written between ``since`` and ``until``, because of ``error``."""

    topic: ClassVar[Topic] = "trouble"
    file: str
    since: float = field(name="from")
    until: float = field(name="to")
    lines: int
    error: str

    def one_line(self) -> str:
        lines = f"{counted(self.lines, 'line')} of {duration(self.until - self.since)}"
        return f"{self.file} lacks {lines}, which could not be written ({self.error})"


class UnrecordedEvent(LoggedEvent, frozen=True, kw_only=True, tag="unrecorded"):
    """A file of the record cannot be written at present; this event is shown on the screen and never written."""

    file: str
    error: str

    def one_line(self) -> str:
        continues = "training continues, and so does the record when it can be written again"
        return f"{self.file} cannot be written ({self.error}): {continues}"


# ---- the job and its hosts -------------------------------------------------------------------------------------------


class StartedEvent(LoggedEvent, frozen=True, kw_only=True, tag="started"):
    """The job starts its first peers.

    Attributes:
        job: The name of the job.
        size: The number of first peers.
        command: The program and its arguments.
        attachment: The name of the implementation that sums the gradients of the peers.
        spares: The number of spares that the job keeps waiting.
        spare_level: The stage at which they wait: "warm", ready to be admitted, or "loaded", with TensorFlow loaded.
    """

    job: str
    size: int
    command: tuple[str, ...]
    attachment: str = ""
    spares: int = 0
    spare_level: str = "warm"

    def one_line(self) -> str:
        verb = "starts" if self.size == 1 else "start"
        return f"{counted(self.size, 'peer')} {verb}: {' '.join(self.command)}{self._spares()}"

    def _spares(self) -> str:
        """The memory that the spares will need, in words; empty without spares."""
        if not self.spares:
            return ""
        needs = "of a peer" if self.spare_level == "warm" else "of a process with TensorFlow, and no device"
        each = "each needs" if self.spares > 1 else "it needs"
        verb = "follow" if self.spares > 1 else "follows"
        return f" ({counted(self.spares, 'spare')} {verb}: {each} the memory {needs})"


class EndedEvent(LoggedEvent, frozen=True, kw_only=True, tag="ended"):
    """The job ended because its training ended or a signal arrived; ``host`` is set in a job of several hosts.

    ``code`` is the job's exit code: 0 if its training is over."""

    reason: str
    host: int | None = None
    code: int = 0

    def one_line(self) -> str:
        return f"ended: {self.reason}"


class RestartedEvent(LoggedEvent, frozen=True, kw_only=True, tag="restarted"):
    """The job starts again in the same record, from its newest checkpoint or from the beginning.

    Attributes:
        why: The end of the run before.
        nth: The number of restarts in a row without a newer checkpoint, including this one; 0 after a signal.
        limit: The number of such restarts that ``--restarts`` permits.
        path: The checkpoint; empty if training starts from the beginning, or as ``--resume`` says.
        step: The steps of the checkpoint; 0 without one.
        steps_again: The recorded steps after the checkpoint, which are done again.
        size: The number of peers that start.
        first_peer: The first id of the peers that start.
        first_view: The version of their first view.
        damaged: Newer checkpoints that cannot be read.
    """

    topic: ClassVar[Topic] = "loss"
    why: str
    nth: int
    limit: int
    path: str = ""
    step: int = 0
    steps_again: int = 0
    size: int
    first_peer: int
    first_view: int
    damaged: tuple[str, ...] = ()

    def one_line(self) -> str:
        """The restart in one line.

        >>> print(RestartedEvent(why="killed", nth=1, limit=3, size=2, first_peer=2, first_view=4).one_line())
        the job starts again from the beginning: killed
        """
        return f"the job starts again from {self.path or 'the beginning'}: {self.why}"

    def headline(self) -> str:
        where = f"checkpoint of step {figure(self.step)}" if self.path else "beginning"
        return f"the job starts again from the {where}: {self.why}"

    def details(self) -> tuple[str, ...]:
        again = f"{counted(self.steps_again, 'step')} {'is' if self.steps_again == 1 else 'are'} done again"
        lost = (f"{path} is newer, and cannot be read" for path in self.damaged)
        count = f"restart {figure(self.nth)} of {figure(self.limit)} in a row without a newer checkpoint"
        return (*([self.path] if self.path else []), *lost, again, *([count] if self.nth else []))


class FailedEvent(LoggedEvent, frozen=True, kw_only=True, tag="failed"):
    """The job cannot continue. ``peer`` is at fault (-1 if no peer is); ``code`` is the job's exit code."""

    topic: ClassVar[Topic] = "loss"
    peer: int
    error: str
    code: int

    def one_line(self) -> str:
        return f"failed: {self.error}"

    def headline(self) -> str:
        return f"this run failed: {self.error}"

    def details(self) -> tuple[str, ...]:
        # The cause may be the job rather than one peer.
        log = f"peers/peer-{self.peer}.log" if self.peer >= 0 else "peers/"
        return f"what it printed is in {log}", f"the job's exit code is {figure(self.code)}"


class HostEvent(LoggedEvent, frozen=True, kw_only=True):
    """An event about one host."""

    host: int
    name: str

    @property
    def named(self) -> str:
        """The host as text."""
        return f"host {self.host} ({self.name})"


class HostJoinedEvent(HostEvent, frozen=True, kw_only=True, tag="host"):
    """A host has joined the job; ``pid`` is the process id of its agent, which listens on ``port`` (0: not known)."""

    pid: int
    port: int = 0

    def one_line(self) -> str:
        return f"{self.named} is in"


class HostNoticedEvent(HostEvent, frozen=True, kw_only=True, tag="host noticed"):
    """A host will be preempted: its agent received ``signal``."""

    signal: str

    def one_line(self) -> str:
        return f"{self.named} got a notice ({self.signal}): its peers leave at the next barrier"


class HostLeftEvent(HostEvent, frozen=True, kw_only=True, tag="host left"):
    """A host has left the job in an orderly way."""

    topic: ClassVar[Topic] = "host"
    why: str

    def one_line(self) -> str:
        return f"{self.named} has left: {self.why}"


class HostLostEvent(HostEvent, frozen=True, kw_only=True, tag="host lost"):
    """A host is lost, together with its peers."""

    topic: ClassVar[Topic] = "loss"
    why: str

    def one_line(self) -> str:
        return f"{self.named} is lost: {self.why}"


class LeaderEvent(HostEvent, frozen=True, kw_only=True, tag="head"):
    """The agent of this host has been elected leader of the job in term ``term``."""

    topic: ClassVar[Topic] = "host"
    term: int

    def one_line(self) -> str:
        return f"{self.named} leads the job now"


class StoreEvent(HostEvent, frozen=True, kw_only=True, tag="store"):
    """The store is "lost" for a host, because of ``why``; or is "back"; or is "awaited", by the leader's decision."""

    topic: ClassVar[Topic] = "trouble"
    state: str
    why: str = ""

    def one_line(self) -> str:
        if self.state == "lost":
            return (
                f"{self.why}: {self.named} trains on, but no lost host is replaced, and no leader elected, until the "
                "store answers"
            )
        if self.state == "awaited":
            return "the next decision waits for the store: a host that may lead the job has not acknowledged it"
        return f"{self.named} reaches the store again"


class DevicesEvent(LoggedEvent, frozen=True, kw_only=True, tag="devices"):
    """A host has more or fewer devices than slots."""

    devices: tuple[str, ...]
    slots: int
    host: int | None = None

    def one_line(self) -> str:
        listed = ", ".join(self.devices)
        # The peers share devices.
        if len(self.devices) < self.slots:
            return (
                f"{figure(self.slots)} slots share {counted(len(self.devices), 'device')} ({listed}): seats get them "
                "in turn, and TensorFlow takes memory of them as it needs it"
            )
        return f"each of {counted(self.slots, 'slot')} gets one device of {listed}; only spares use the others"


class RequestEvent(LoggedEvent, frozen=True, kw_only=True, tag="request"):
    """An external request reached ``state`` in view ``view``, ``seconds`` after its submission."""

    topic: ClassVar[Topic] = "request"
    id: str
    request: str
    state: str
    reason: str
    view: int
    seconds: float

    def one_line(self) -> str:
        after = f" after {duration(self.seconds)}" if self.state in ("carried out", "expired") else ""
        return f"kungfu {self.request}: {self.state}{after}{f' ({self.reason})' if self.reason else ''}"

    def tallied_as(self) -> str:
        return self.state


class SizeLimitsEvent(LoggedEvent, frozen=True, kw_only=True, tag="limits"):
    """The limits of the size, or a person's hold on the size, have changed.

    Attributes:
        minimum: The minimum number of peers from now on.
        maximum: The maximum number of peers from now on.
        held: The size at which the job is held; None if rules and hooks may change the size.
        until: The end of the hold, in seconds since 1970; None for a hold until it is released.
        why: The command, or the reason for the end of a hold.
    """

    minimum: int
    maximum: int
    held: int | None = None
    until: float | None = None
    why: str

    def one_line(self) -> str:
        """The limits in one line.

        >>> SizeLimitsEvent(minimum=1, maximum=4, why="kungfu resize --max 4").one_line()
        'the job takes 1 to 4 peers; policies may change the size (kungfu resize --max 4)'
        """
        return f"the job takes {figure(self.minimum)} to {counted(self.maximum, 'peer')}; {self.hold()} ({self.why})"

    def hold(self) -> str:
        """The hold as text."""
        if self.held is None:
            return "policies may change the size"
        return held_words(self.held, self.until, now=self.time)
