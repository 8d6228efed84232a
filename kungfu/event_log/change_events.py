"""Events that report the outcomes of requests and losses: refusals, rescales, recoveries, spans and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from msgspec import Struct, field

from kungfu.event_log.logged_event import LoggedEvent, Topic
from kungfu.event_log.values import UNKNOWN, counted, duration, figure, label, peers_named, size_in_bytes

__all__ = [
    "CheckpointEvent", "MembershipChange", "RecoveredEvent", "RefusedEvent", "RescaleEvent", "SpanEvent", "SpanPart",
    "phase_of",
]  # fmt: skip

_BESIDE = ("spawn_s", "ready_s")
_STOPPED = ("barrier_s", "attach_s", "state_s")
_AFTER = "first_step_s"


class RefusedEvent(LoggedEvent, frozen=True, kw_only=True, tag="refused"):
    """Some or all peers of a requested change are not available.

    Attributes:
        rule: The rules or the request behind the change; empty if there are none.
        asked: The requested size.
        size: The number of peers that continue to train.
        reason: Why no more peers join.
        peers: The ids of the peers that stay instead of being replaced.
        settings: The batch and the learning rate that were to come with the requested size, as text.
        global_batch_size: Samples per step of the training that continues; 0 if not recorded.
    """

    topic: ClassVar[Topic] = "refusal"
    rule: str
    asked: int
    size: int
    reason: str
    peers: tuple[int, ...] = ()
    settings: str = ""
    global_batch_size: int = 0

    def one_line(self) -> str:
        which = f"{self.rule} wanted {self.requested()}, which" if self.rule else self.requested()
        batch = f" and a batch of {figure(self.global_batch_size)}, without {self.settings}" if self.settings else ""
        return f"{which} cannot be had: {self.reason}; training continues with {figure(self.size)}{batch}"

    def headline(self) -> str:
        wanted = self.requested()
        return f"refused: {self.rule} wanted {wanted}" if self.rule else f"{wanted} could not be had"

    def details(self) -> tuple[str, ...]:
        continues = f"training continues with {counted(self.size, 'peer')}"
        if not self.settings:
            return f"why: {self.reason}", continues
        batch = counted(self.global_batch_size, "sample")
        late = f"{self.settings}, which would have come with {counted(self.asked, 'peer')}"
        return f"why: {self.reason}", f"{continues} and a batch of {batch}", f"not in force: {late}"

    def markers(self) -> Mapping[str, float]:
        return {"markers/refused": self.asked}

    def requested(self) -> str:
        """The refused request as text: a size, replacements for some peers, or both."""
        others = [f"others in place of {peers_named(self.peers)}"] if self.peers else []
        size = [counted(self.asked, "peer")] if self.asked != self.size or not others else []
        return " and ".join([*size, *others])

    def outcome(self) -> tuple[str, str]:
        """The new state of the refused decision ("refused"), and a description of the result."""
        return "refused", f"refused: {self.reason}"

    def brief(self) -> str:
        """The refusal in a few words, for a status line."""
        return f"{self.rule or UNKNOWN}: {counted(self.asked, 'peer')} refused"


class RescaleEvent(LoggedEvent, frozen=True, kw_only=True, tag="rescale"):
    """The membership changed after ``step`` steps, and training stopped for ``stop_s`` seconds.

    Attributes:
        step: The last step before the change.
        rule: The rule or the request behind the change.
        decided_at: The step of the decision; None if no rule decided the change.
        before: The number of peers before the change.
        after: The number of peers after the change.
        view: The version of the new view.
        joined: The ids of the peers that joined.
        left: The ids of the peers that left.
        global_batch_size: Samples per step after the change.
        stop_s: Seconds for which training stopped.
        parts: The seconds of each part. "spawn_s" and "ready_s" overlap with training; "first_step_s" follows the stop.
        base_global_batch_size: The samples per step from which rules on a rescale derive the next batch, if such
            rules have changed the batch; else 0.
        base_size: The number of peers for which ``base_global_batch_size`` was set; else 0.
    """

    topic: ClassVar[Topic] = "rescale"
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
    base_global_batch_size: int = 0
    base_size: int = 0

    def one_line(self) -> str:
        peers = self._joined_and_left()
        return (
            f"step {figure(self.step)}: {figure(self.before)} -> {counted(self.after, 'peer')}"
            f"{f' ({peers})' if peers else ''}, batch {figure(self.global_batch_size)}; training stood still for "
            f"{duration(self.stop_s)}"
        )

    def headline(self) -> str:
        peers, sizes = self._joined_and_left(), f"{figure(self.before)} -> {counted(self.after, 'peer')}"
        return f"step {figure(self.step)}: {sizes}{f'; {peers}' if peers else ''}"

    def details(self) -> tuple[str, ...]:
        """Lines of text: the decision behind the change, and the durations of the parts of the change."""
        at, made_ready = self.decided_at, _parts(self, "beside")
        ago = "" if at is None else f"at step {figure(at)}, {counted(self.step - at, 'step')} before"
        return (
            *([f"as {self.rule} decided {ago}"] if ago else []),
            *([f"made ready while training continued: {made_ready}"] if made_ready else []),
            f"training stood still for {duration(self.stop_s)}{_stopped(self)}",
            f"the first step after it took {duration(self.parts.get(_AFTER))}; the batch is now "
            f"{counted(self.global_batch_size, 'sample')}",
        )

    def markers(self) -> Mapping[str, float]:
        return {"markers/rescale": self.after, **_times("rescale", self)}

    def cause(self) -> str:
        """The cause of the change as text: a rule or a request, or else the replacement of lost peers."""
        return self.rule or "in place of lost peers"

    def outcome(self) -> tuple[str, str]:
        """The new state of the decision behind the change ("carried out"), and a description of the result."""
        done = f"{counted(self.after, 'peer')} after step {figure(self.step)}; training stood still for "
        return "carried out", done + duration(self.stop_s)

    def brief(self) -> str:
        """The rescale in a few words, for a status line."""
        return f"step {figure(self.step)}, {self.cause()}: {_came(self)}"

    def _joined_and_left(self) -> str:
        came = [f"{peers_named(self.joined)} joined"] if self.joined else []
        went = [f"{peers_named(self.left)} left"] if self.left else []
        return ", ".join(came + went)


class RecoveredEvent(LoggedEvent, frozen=True, kw_only=True, tag="recovered"):
    """Peers were lost, and the other peers train again.

    Attributes:
        step: The step after which training continues.
        before: The number of peers before the loss.
        after: The number of peers that continue.
        view: The version of the new view.
        lost: A description of the loss of each lost peer, by id.
        noticed_by: The error by which the loss was noticed; shown if no peer was lost.
        state_of: The id of the peer that sent its state to all others.
        redone: The number of steps that are repeated.
        registered_before: The step before which the job's registered values were read, if no surviving peer has
            newer values; else ``None``.
        lost_samples: The samples on which lost peers trained after the last average of models, so that they are in
            no average; 0 in a run that averages gradients.
        target: The number of peers once replacements are ready.
        global_batch_size: Samples per step after the recovery.
        stop_s: Seconds from the end of the last step to the end of the next step, minus the time of one step.
        noticed_s: Seconds from the last step until the loss was noticed.
        regrouped_s: Seconds from the notice of the loss until training could continue.
        step_s: Median seconds of a step before the loss.
        parts: The seconds of each part, by name.
    """

    topic: ClassVar[Topic] = "recovery"
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
    registered_before: int | None = None
    lost_samples: int = 0

    def one_line(self) -> str:
        redone = f", {counted(self.redone, 'step')} undone" if self.redone else ""
        before = self.registered_before
        registered = "" if before is None else f", registered values from before step {figure(before)}"
        lost = f", {counted(self.lost_samples, 'sample')} in no average" if self.lost_samples else ""
        state = "the survivors' average" if self.lost_samples else f"the state of peer {figure(self.state_of)}"
        return (
            f"step {figure(self.step)}: {figure(self.before)} -> {counted(self.after, 'peer')}, from {state}"
            f"{redone}{lost}{registered}, batch {figure(self.global_batch_size)}; training stood "
            f"still for {duration(self.stop_s)}"
        )

    def headline(self) -> str:
        peers = f"{counted(self.after, 'peer')} of {figure(self.before)}"
        batch = f"the batch stays at {counted(self.global_batch_size, 'sample')}"
        return f"step {figure(self.step)}: training continues with {peers}; {batch}"

    def details(self) -> tuple[str, ...]:
        """Lines of text: the lost peers, the repeated steps, and the times of the recovery.

        >>> parts = {"regroup_s": 0.17, "attach_s": 0.01, "first_step_s": 0.03}
        >>> took = {"stop_s": 5.183, "noticed_s": 5.0, "regrouped_s": 0.183, "step_s": 0.03, "parts": parts}
        >>> event = RecoveredEvent(step=47, before=3, after=2, view=2, lost={"1": "killed by SIGKILL"}, redone=0,
        ...                        noticed_by="", state_of=0, target=3, global_batch_size=12, **took)
        >>> event.headline()
        'step 47: training continues with 2 peers of 3; the batch stays at 12 samples'
        >>> print(*event.details(), sep=chr(10))
        lost: peer 1 (killed by SIGKILL)
        nothing that was done is lost: the state is that of peer 0
        training stood still for 5.2 s, from step to step, less a step
        noticed 5.0 s after the last step, then regrouped in 183 ms (attach 10 ms, regroup 170 ms)
        the first step after it took 30 ms; one of those before, 30 ms
        1 replacement is on its way
        """
        lost, coming = ", ".join(f"peer {peer} ({how})" for peer, how in sorted(self.lost.items())), self._coming()
        noticed, regrouped = duration(self.noticed_s), duration(self.regrouped_s)
        return (
            f"lost: {lost}" if lost else f"nobody was lost: {self.noticed_by}",
            self._redone(),
            *self._registered(),
            f"training stood still for {duration(self.stop_s)}, from step to step, less a step",
            f"noticed {noticed} after the last step, then regrouped in {regrouped}{_stopped(self)}",
            f"the first step after it took {duration(self.parts.get(_AFTER))}; one of those before, "
            f"{duration(self.step_s)}",
            *([coming] if coming else []),
        )

    def markers(self) -> Mapping[str, float]:
        return {"markers/recovery": self.after, **_times("recovery", self)}

    def cause(self) -> str:
        """The cause of the change as text: the loss of so many peers."""
        return f"loss of {counted(len(self.lost), 'peer')}"

    def brief(self) -> str:
        """The recovery in a few words, for a status line."""
        return f"step {figure(self.step)}, after the {self.cause()}: {_came(self)}"

    def _redone(self) -> str:
        # The run averages models, and the lost peers had trained since the last average.
        if self.lost_samples:
            samples = counted(self.lost_samples, "sample")
            return f"{samples} of the lost peers are in no average: the state is the average of the others' models"
        # The adopted state is older than the state of rank 0 before the loss.
        if self.redone:
            steps = counted(self.redone, "step")
            return f"{steps} of rank 0 will be redone: the state is that of peer {figure(self.state_of)}"
        return f"nothing that was done is lost: the state is that of peer {figure(self.state_of)}"

    def _registered(self) -> list[str]:
        if self.registered_before is None:
            return []
        return [
            f"registered values are as they were before step {figure(self.registered_before)}: nobody has lived who "
            "knows what the program did to them after it"
        ]

    def _coming(self) -> str:
        coming = self.target - self.after
        # No replacement is needed, for example because the lost peer was already leaving.
        if coming <= 0:
            return ""
        return f"{counted(coming, 'replacement')} {'is on its' if coming == 1 else 'are on their'} way"


MembershipChange = RescaleEvent | RecoveredEvent


def phase_of(part: str) -> Literal["beside", "stopped", "after"]:
    """The phase of a part: ``beside`` while training continues, ``stopped`` while it waits, or ``after`` the stop.

    Unknown parts count as ``stopped``, because the parts of a stop must add up to the seconds of the stop.

    >>> [phase_of(part) for part in ("spawn_s", "state_s", "first_step_s", "another_s")]
    ['beside', 'stopped', 'after', 'stopped']
    """
    return "beside" if part in _BESIDE else "after" if part == _AFTER else "stopped"


def _parts(event: MembershipChange, phase: Literal["beside", "stopped"]) -> str:
    """The parts of a change in one phase with their durations, as text, known names first; empty without parts."""
    names = dict.fromkeys((*_BESIDE, *_STOPPED, *event.parts))
    parts = {name: event.parts[name] for name in names if name in event.parts and phase_of(name) == phase}
    return ", ".join(f"{label(name.removesuffix('_s'))} {duration(took)}" for name, took in parts.items())


def _stopped(event: MembershipChange) -> str:
    """The parts of the time for which training stopped, as text in brackets; empty if there are none."""
    parts = _parts(event, "stopped")
    return f" ({parts})" if parts else ""


def _came(event: MembershipChange) -> str:
    sizes = f"{figure(event.before)} -> {counted(event.after, 'peer')}"
    return f"{sizes}, stood still for {duration(event.stop_s)}"


def _times(what: str, event: MembershipChange) -> dict[str, float]:
    return {f"{what}/stop_s": event.stop_s, **{f"{what}/{part}": took for part, took in event.parts.items()}}


class SpanPart(Struct, frozen=True, omit_defaults=True):
    """A part of a stop: its name, its seconds ``s``, and its subparts."""

    name: str
    s: float
    parts: tuple[SpanPart, ...] = ()


class SpanEvent(LoggedEvent, frozen=True, kw_only=True, tag="span"):
    """A membership change (``what``) took ``s`` seconds on one peer; ``parts`` divides these seconds."""

    what: str
    peer: int
    view: int
    step: int
    s: float
    parts: tuple[SpanPart, ...] = ()


class CheckpointEvent(LoggedEvent, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint was written, or writing it failed.

    Attributes:
        step: The number of steps done before the checkpoint.
        rule: The rule or the request that required the checkpoint.
        path: The folder of the checkpoint.
        size_bytes: The size of the checkpoint; None if unknown.
        error: The reason why writing failed; empty if writing succeeded.
        names: The names that the checkpoint received, such as "best".
        seconds: Seconds that the writing took.
        stop_s: Seconds for which training stopped.
    """

    topic: ClassVar[Topic] = "checkpoint"
    step: int
    rule: str
    path: str
    size_bytes: int | None = field(name="bytes", default=None)
    error: str = ""
    names: tuple[str, ...] = ()
    seconds: float
    stop_s: float

    def one_line(self) -> str:
        step = figure(self.step)
        # For example, the disk is full; training has continued.
        if self.error:
            return f"step {step}: no checkpoint could be written to {self.path}: {self.error}"
        named = f", named {' and '.join(map(repr, self.names))}" if self.names else ""
        size = size_in_bytes(self.size_bytes)
        return f"step {step}: a checkpoint of {size} is in {self.path}, as {self.rule} asked{named}"

    def details(self) -> tuple[str, ...]:
        if self.error:
            return ("training continued without it; what was there before is as it was",)
        held, took = duration(self.stop_s), duration(self.seconds)
        return (f"rank 0 held the others for {held}, and wrote for {took} while all trained on",)

    def markers(self) -> Mapping[str, float]:
        if self.error:
            return {}
        size = {} if self.size_bytes is None else {"checkpoint/bytes": float(self.size_bytes)}
        return {**size, "checkpoint/seconds": self.seconds, "checkpoint/stop_s": self.stop_s}

    def tallied_as(self) -> str:
        return "failed" if self.error else "written"
