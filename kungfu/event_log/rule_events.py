"""Events of rules, and of what comes of them: rescales, recoveries, spans, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from kungfu.event_log.logged_event import LoggedEvent, Number, Saw

__all__ = [
    "CalledEvent",
    "CheckpointEvent",
    "DecisionEvent",
    "HeldEvent",
    "RecoveredEvent",
    "RefusedEvent",
    "RescaleEvent",
    "RuleEvent",
    "RulesEvent",
    "SetEvent",
    "SettingRun",
    "ShadowEvent",
    "SpanEvent",
    "SpanPart",
    "SupersededEvent",
    "joined_to_run",
]


# ---- rules and what comes of them ------------------------------------------------------------------------------------


class RuleEvent(LoggedEvent, frozen=True, kw_only=True):
    """A rule fired after ``step`` steps; ``saw`` are the values that it saw, by name."""

    step: int
    rule: str
    saw: Saw


class RulesEvent(LoggedEvent, frozen=True, kw_only=True, tag="rules"):
    """From step ``step`` on these rules may ask for another size, or for other peers: decisions have their names."""

    step: int
    rules: tuple[str, ...]


class DecisionEvent(RuleEvent, frozen=True, kw_only=True, tag="decision"):
    """A rule asked for ``asked`` peers in place of ``size``.

    Attributes:
        size: Peers when the rule fired.
        asked: Peers that it asked for.
        done: What the barrier made of it, in words.
        won: The policies of a combined rule whose target was taken.
        lost: Its other policies that had a target.
        peers: The peers that the rule named.
        when: When these leave: "now", or "replaced" when others are ready.
        slow: The peers that left first since they are slow, by id: their speeds as fractions of the median peer's.
    """

    size: int
    asked: int
    done: str
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    when: str = ""
    slow: Mapping[str, float] = field(default_factory=dict)


class SupersededEvent(RuleEvent, frozen=True, kw_only=True, tag="superseded"):
    """Nothing came of what a rule asked for, since ``by`` came before it, or after it in the step ``later``.

    ``what`` is a setting that it asked for, in words; empty for a size (``asked``) and for ``peers``. Other fields as
    in a decision.
    """

    asked: int
    by: str
    what: str = ""
    later: int | None = None
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    when: str = ""


class CalledEvent(RuleEvent, frozen=True, kw_only=True, tag="called"):
    """A hook was called, and asked for a size or ``None``; ``ignored`` says why that is passed over, where it is.

    ``also`` is what else it asked for, as it wrote it.
    """

    asked: int | None
    ignored: str = ""
    also: tuple[str, ...] = ()


class SetEvent(RuleEvent, frozen=True, kw_only=True, tag="set"):
    """A barrier changed a setting (``what``; "stop" ends training) to a value, over so many ``unit``s."""

    what: str
    to: Number | None
    over: Number
    unit: str


class SettingRun(Struct, frozen=True):
    """A setting that one rule changed so many times, twice or more, with nothing else told in between."""

    first: SetEvent
    last: SetEvent
    times: int


def joined_to_run(run: SetEvent | SettingRun | None, event: SetEvent) -> SetEvent | SettingRun:
    """The run of a rule's setting once the rule has changed it once more; the event itself is a run of one."""
    if run is None:
        return event
    return SettingRun(run.first, event, run.times + 1) if isinstance(run, SettingRun) else SettingRun(run, event, 2)


class ShadowEvent(RuleEvent, frozen=True, kw_only=True, tag="shadow"):
    """A rule in the shadow would have asked for this; ``action`` is the class of its action."""

    action: str
    asked: Number | None
    ranks: tuple[int, ...]


class HeldEvent(RuleEvent, frozen=True, kw_only=True, tag="held"):
    """A budget of the job or of its policy holds back what a rule asked for; ``action`` is the class of its action.

    ``budget`` is what is used up, in words: "8 replacements in 800 steps"; empty in older records.
    """

    action: str
    asked: Number | None
    ranks: tuple[int, ...]
    budget: str = ""


class RefusedEvent(LoggedEvent, frozen=True, kw_only=True, tag="refused"):
    """The peers that a change was to have cannot be had, or not all of them.

    Attributes:
        rule: The rules or the request that asked for it; empty where nobody did.
        asked: The size that was asked for.
        size: Peers that train on.
        reason: Why nobody more comes.
        peers: The ids of the peers that were to be replaced, and stay.
    """

    rule: str
    asked: int
    size: int
    reason: str
    peers: tuple[int, ...] = ()


class RescaleEvent(LoggedEvent, frozen=True, kw_only=True, tag="rescale"):
    """The membership changed after ``step`` steps, and training stood still for ``stop_s``.

    Attributes:
        step: The last step before the change.
        rule: The rule or the request that asked for it.
        decided_at: The step in which it was decided, None where no rule decided it.
        before: Peers before it.
        after: Peers after it.
        view: The version of the new view.
        joined: The ids of the peers that joined.
        left: The ids of the peers that left.
        global_batch_size: Samples per step after it.
        stop_s: Seconds for which training stood still.
        parts: Seconds of each part. Those of spawn and ready went on beside training, and those of the first step came
            after the stop.
        base_global_batch_size: The samples per step from which rules on a rescale go on choosing, where they have
            chosen others; else 0.
        base_size: The peers that these were set for; else 0.
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
    base_global_batch_size: int = 0
    base_size: int = 0


class RecoveredEvent(LoggedEvent, frozen=True, kw_only=True, tag="recovered"):
    """Peers were lost, and the others train again.

    Attributes:
        step: The step after which training goes on.
        before: Peers before the loss.
        after: Peers that go on.
        view: The version of the new view.
        lost: How each peer was lost, by its id.
        noticed_by: What showed the loss, where no peer was lost.
        state_of: The peer whose state all others took.
        redone: Steps that are done once more.
        registered_before: The step before which the registered values were read that the job continues with, where no
            peer has lived that knows newer ones; else ``None``.
        target: Peers that the job is to have, once replacements are ready.
        global_batch_size: Samples per step from now on.
        stop_s: Seconds from the end of the last step to the end of the next one, less a step.
        noticed_s: Seconds of it until the loss was known.
        regrouped_s: Seconds of it until training could go on.
        step_s: Seconds of a step before the loss, in the median.
        parts: Seconds of each part.
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
    registered_before: int | None = None


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
