"""Events of rules: their decisions and other requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from msgspec import Struct, field

from kungfu.event_log.logged_event import LoggedEvent, Number, Saw, Topic
from kungfu.event_log.numbers import as_float
from kungfu.event_log.values import counted, figure, finite_number, held_words, label, peers_named

__all__ = [
    "CalledEvent", "DecisionEvent", "HeldEvent", "RestoredEvent", "RuleEvent", "RulesEvent", "SetEvent", "SettingRun",
    "ShadowEvent", "SupersededEvent", "joined_to_run",
]  # fmt: skip

_ACTIONS = {
    "Rescale": "another size",
    "SetGlobalBatchSize": "another batch",
    "SetLearningRate": "another learning rate",
    "ScaleLearningRate": "another factor on the learning rate",
    "SetVariable": "another value",
    "Synchronise": "another averaging interval",
    "Stop": "the end of training",
    "Call": "a call",
    "Evict": "the eviction of",
    "Replace": "the replacement of",
    "Checkpoint": "a checkpoint",
    "Restore": "a checkpoint to be restored",
}


def reasons(saw: Mapping[str, object], *, without: Iterable[str] = ("size", "target")) -> str:
    """The values that a rule saw, as text with their names."""
    hidden = {*without}
    return ", ".join(f"{label(name)} {figure(value)}" for name, value in saw.items() if name not in hidden)


class RuleEvent(LoggedEvent, frozen=True, kw_only=True):
    """A rule fired after ``step`` steps; ``saw`` maps names to the values that the rule saw."""

    step: int
    rule: str
    saw: Saw

    def one_line(self) -> str:
        """The event in one line: its headline, and in brackets the values that the rule saw."""
        said, saw = self.headline(), reasons(self.saw)
        return f"{said} ({saw})" if said and saw else said

    def headline(self) -> str:
        return f"step {figure(self.step)}: {self.rule} {self.requested()}"

    def details(self) -> tuple[str, ...]:
        saw = reasons(self.saw, without=())
        return (f"it saw: {saw}",) if saw else ()

    def requested(self) -> str:
        """The request of the rule, as text."""
        return "fired"


class RulesEvent(LoggedEvent, frozen=True, kw_only=True, tag="rules"):
    """The rules that may request another size or other peers from step ``step`` on, named as in decisions."""

    step: int
    rules: tuple[str, ...]


class DecisionEvent(RuleEvent, frozen=True, kw_only=True, tag="decision"):
    """A rule requested ``asked`` peers in place of ``size``.

    Attributes:
        size: The number of peers when the rule fired.
        asked: The requested number of peers.
        done: The effect that the request had in the barrier, as text.
        won: The policies that set the target of a combined rule.
        lost: The other policies of a combined rule that had a target.
        peers: The peers that the rule named.
        when: When ``peers`` leave: "now", or "replaced" once their replacements are ready.
        slow: The speeds of the peers that left first because they are slow, by id, as fractions of the median speed.
        settings: The batch and the learning rate that come into force with that number of peers, as text.
        has_no_effect: True if the job keeps its peers and awaits no others, as with a size that is out of reach.
    """

    topic: ClassVar[Topic] = "decision"
    size: int
    asked: int
    done: str
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    when: str = ""
    slow: Mapping[str, float] = field(default_factory=dict)
    settings: str = ""
    has_no_effect: bool = False

    @property
    def is_change(self) -> bool:
        """True if the decision requests another size or other peers, and the job gets or awaits them."""
        return (self.asked != self.size or bool(self.peers)) and not self.has_no_effect

    def one_line(self) -> str:
        """The decision in one line.

        >>> DecisionEvent(step=50, rule="grow", saw={"noise_scale": 50.7}, size=2, asked=3, done="").one_line()
        'step 50: grow wants 3 peers instead of 2 (noise scale 50.7)'
        """
        return super().one_line() + (f"; {self.done}" if self.done else "")

    def headline(self) -> str:
        return f"step {figure(self.step)}: {self.rule} wants {self.requested()}"

    def details(self) -> tuple[str, ...]:
        shown, target = self.seen(), self.saw.get("target")
        makes = f", which makes {figure(target)}" if finite_number(target) not in (None, float(self.asked)) else ""
        saw = [f"it saw: {shown}{makes}"] if shown else []
        return *saw, *self.contest(), f"done: {self.done}"

    def markers(self) -> Mapping[str, float]:
        return {"markers/decision": self.asked}

    def tallied_as(self) -> str:
        """The name of the rule; for a request by a ``kungfu`` command, the first two words of the command."""
        return " ".join(self.rule.split(" ")[:2]) if self.rule.startswith("kungfu ") else self.rule

    def requested(self) -> str:
        """The request as text, with the present size.

        >>> DecisionEvent(step=50, rule="grow", saw={}, size=2, asked=3, done="").requested()
        '3 peers instead of 2'
        """
        # Replacements keep the size and change only the peers.
        if self.when == "replaced":
            return f"{peers_named(self.peers)} replaced"
        # The target of a rule may be reached before the barrier.
        along = f" with {self.settings}" if self.settings else ""
        if self.asked == self.size:
            return f"to stay at {counted(self.size, 'peer')}{along}"
        return f"{counted(self.asked, 'peer')} instead of {figure(self.size)}{along}"

    def seen(self, *without: str) -> str:
        """The values that the rule saw, as text, without sizes and the named values."""
        return reasons(self.saw, without=("size", "target", *self.won, *self.lost, *without))

    def contest(self) -> list[str]:
        """The requests of a combined rule's policies, and the policies that won; empty for any other rule.

        >>> saw = {"grow": 4.0, "schedule": 3.0, "target": 3.0}
        >>> decision = DecisionEvent(step=50, rule="at_most(grow, schedule)", saw=saw, size=2, asked=3, done="",
        ...                          won=("schedule",), lost=("grow",))
        >>> decision.contest()
        ['grow wanted 4, schedule wanted 3: schedule won']
        """
        names = [name for name in self.saw if name in (*self.won, *self.lost)]
        # A rule of one policy has no candidates.
        if not names:
            return []
        requests = ", ".join(f"{name} wanted {figure(self.saw[name])}" for name in names)
        # No policy has won if the rule follows a policy that has no target yet.
        return [f"{requests}: {' and '.join(self.won) or 'none'} won"]

    def outcome(self) -> tuple[str, str]:
        """The state of this decision until its result is recorded, and a description of its effect so far."""
        return "decided" if self.is_change else "carried out", self.done

    def brief(self) -> str:
        """The decision in a few words, for a status line."""
        if self.when == "replaced":
            asked = f"{peers_named(self.peers)} replaced"
        elif self.asked == self.size:  # as when a rule withdraws a larger size before its peers have joined
            asked = f"stays at {counted(self.size, 'peer')}"
        else:
            asked = f"{figure(self.size)} -> {counted(self.asked, 'peer')}"
        return f"step {figure(self.step)}, {self.rule}: {asked}"


class SupersededEvent(RuleEvent, frozen=True, kw_only=True, tag="superseded"):
    """The request of a rule had no effect. The other fields have the same meaning as in `DecisionEvent`.

    Attributes:
        asked: The requested size.
        by: The rule or the request that took precedence, or superseded this request later.
        what: The requested setting, as text; empty if a size or peers were requested.
        later: The step in which ``by`` superseded this request; None if ``by`` took precedence.
        held: The size at which a person held the job, if this stopped the request; else 0.
        until: The end of that hold, in seconds since 1970; None for a hold until it is released.
        settings: The batch and the learning rate that would have come with the requested size, as text.
    """

    topic: ClassVar[Topic] = "superseded"
    asked: int
    by: str
    what: str = ""
    later: int | None = None
    held: int = 0
    until: float | None = None
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    when: str = ""
    settings: str = ""

    def headline(self) -> str:
        """The request that had no effect, and the reason; empty if the rule itself replaced the request later.

        >>> SupersededEvent(step=50, rule="hook", saw={}, asked=3, by="grow").headline()
        'step 50: hook wanted 3 peers; nothing came of it, since grow came before it'
        >>> SupersededEvent(step=50, rule="hook", saw={}, asked=3, by="a person's hold", held=2).headline()
        'step 50: held at 2 by a person until it is released: hook wants 3 peers'
        """
        if self.held:
            return f"step {figure(self.step)}: {self.outcome()[1]}: {self.rule} wants {self.requested()}"
        # The rule has replaced its request; the later decision covers both requests.
        if self.by == self.rule and self.later is not None:
            return ""
        return f"step {figure(self.step)}: {self.rule} wanted {self.requested()}; {self.outcome()[1]}"

    def requested(self) -> str:
        # The request was an eviction or a replacement of peers.
        if self.peers:
            return f"{peers_named(self.peers)} {'replaced' if self.when == 'replaced' else 'to leave'}"
        return self.what or counted(self.asked, "peer") + (f" with {self.settings}" if self.settings else "")

    def outcome(self) -> tuple[str, str]:
        """The state of the request, and why it had no effect.

        >>> SupersededEvent(step=10, rule="grow", saw={}, asked=3, by="stop_on_nan", later=57).outcome()
        ('superseded', 'nothing came of it, since stop_on_nan came after it, at step 57')
        """
        if self.held:
            return "held", held_words(self.held, self.until, now=self.time)
        when = "before it" if self.later is None else f"after it, at step {figure(self.later)}"
        return "superseded", f"nothing came of it, since {self.by} came {when}"


class CalledEvent(RuleEvent, frozen=True, kw_only=True, tag="called"):
    """A hook, a Python function that may request changes, was called.

    Attributes:
        asked: The requested size; None if no size was requested.
        ignored: The reason why the request is ignored; empty if the request is not ignored.
        also: The other requests, as written in the hook.
    """

    topic: ClassVar[Topic] = "call"
    asked: int | None
    ignored: str = ""
    also: tuple[str, ...] = ()

    def one_line(self) -> str:
        saw, ignored = reasons(self.saw), f"; passed over: {self.ignored}" if self.ignored else ""
        given = f" with {saw}" if saw else ""
        return f"step {figure(self.step)}: {self.rule} was called{given}; {self.requested()}{ignored}"

    def headline(self) -> str:
        return f"step {figure(self.step)}: the hook {self.rule} was called; {self.requested()}"

    def details(self) -> tuple[str, ...]:
        given = reasons(self.saw, without=())
        ignored = [f"passed over: {self.ignored}"] if self.ignored else []
        return *([f"it was given: {given}"] if given else []), *ignored

    def requested(self) -> str:
        also = ", ".join(self.also)
        # The hook requested no size, but possibly other things.
        if self.asked is None:
            return f"it asks for {also}" if also else "it wants no change of size"
        return f"it wants {counted(self.asked, 'peer')}" + (f", and {also}" if also else "")

    def outcome(self) -> tuple[str, str]:
        """The state of the request, and the reason why it is ignored; an empty text if it is not ignored."""
        return "called", self.ignored


class SetEvent(RuleEvent, frozen=True, kw_only=True, tag="set"):
    """A rule changed a setting, at once or gradually.

    Attributes:
        what: The name of the setting; "stop" if the rule ends training.
        to: The new value; None for "stop".
        over: The length of a gradual change, in ``unit``; 0 for a change at once.
        unit: The unit of ``over``: "steps" or "samples".
        decided_at: The step of the decision, if the setting came into force later, with the peers of that decision.
    """

    topic: ClassVar[Topic] = "setting"
    what: str
    to: Number | None
    over: Number
    unit: str
    decided_at: int | None = None

    def requested(self) -> str:
        if self.what == "stop":
            return "ends training"
        length = f" over {figure(self.over)} {self.unit}" if finite_number(self.over) else ""
        decided = "" if self.decided_at is None else f", as decided at step {figure(self.decided_at)}"
        return f"sets the {self.what} to {figure(self.to)}{length}{decided}"

    def markers(self) -> Mapping[str, float]:
        value = as_float(self.to)
        return {} if value is None else {f"settings/{self.what.replace(' ', '_')}": value}


class RestoredEvent(RuleEvent, frozen=True, kw_only=True, tag="restored"):
    """The model of all peers was restored from a named checkpoint, or could not be restored.

    Attributes:
        name: The name of the checkpoint.
        path: The folder of the checkpoint; empty if there is none.
        saved_step: The number of steps done before the checkpoint; None if unknown.
        at_step: The number of steps done before the model was restored.
        error: The reason why the model could not be restored; empty if it was.
        stop_s: Seconds for which training stopped.
    """

    topic: ClassVar[Topic] = "setting"
    name: str
    path: str
    saved_step: int | None
    at_step: int
    error: str = ""
    stop_s: float

    def requested(self) -> str:
        """The request and its outcome, as text.

        >>> event = RestoredEvent(
        ...     step=50, rule="early_stop", saw={}, name="best", path="kept/step-00000030", saved_step=30,
        ...     at_step=51, stop_s=0.02)
        >>> event.one_line()
        "step 50: early_stop restores the checkpoint 'best' of step 30"
        """
        if self.error:
            return f"wants the checkpoint {self.name!r} restored, which was not possible: {self.error}"
        return f"restores the checkpoint {self.name!r} of step {figure(self.saved_step)}"

    def details(self) -> tuple[str, ...]:
        if self.error:
            return *super().details(), "the model of all peers is as it was"
        done = f"after step {figure(self.at_step)} all peers received the weights and slots that are in {self.path}"
        return *super().details(), done, "data, steps, batch, rate and policies went on from where they were"

    def tallied_as(self) -> str:
        return "failed" if self.error else "restored"


class SettingRun(Struct, frozen=True):
    """A setting that one rule changed ``times`` times (at least twice), with no other event in between."""

    first: SetEvent
    last: SetEvent
    times: int

    @property
    def time(self) -> float | None:
        """The time of the first change."""
        return self.first.time

    def one_line(self) -> str:
        """The series of changes in one line.

        >>> from msgspec.structs import replace
        >>> first = SetEvent(step=10, rule="decay", saw={}, what="learning rate", to=0.125, over=0.0, unit="steps")
        >>> SettingRun(first, replace(first, step=19, to=0.0525), 10).one_line()
        'steps 10 to 19: decay sets the learning rate 10 times, from 0.125 to 0.0525'
        """
        first, last = self.first, self.last
        steps = f"steps {figure(first.step)} to {figure(last.step)}"
        values = f"from {figure(first.to)} to {figure(last.to)}"
        return f"{steps}: {first.rule} sets the {first.what} {figure(self.times)} times, {values}"

    def headline(self) -> str:
        """The headline of the series of changes in ``kungfu why``."""
        return self.one_line()

    def details(self) -> tuple[str, ...]:
        """The lines below the headline in ``kungfu why``."""
        return tuple(f"at last {one}" for one in self.last.details())


def joined_to_run(run: SetEvent | SettingRun | None, event: SetEvent) -> SetEvent | SettingRun:
    """The series ``run`` of changes of one setting, extended by ``event``; only ``event`` if there is no series yet."""
    if run is None:
        return event
    return SettingRun(run.first, event, run.times + 1) if isinstance(run, SettingRun) else SettingRun(run, event, 2)


class ShadowEvent(RuleEvent, frozen=True, kw_only=True, tag="shadow"):
    """A shadow rule fired without effect; ``action`` is the class of the action that the rule would have requested."""

    topic: ClassVar[Topic] = "shadow"
    action: str
    asked: Number | None
    ranks: tuple[int, ...]

    def requested(self) -> str:
        return f"would have asked for {_action(self)}"


class HeldEvent(RuleEvent, frozen=True, kw_only=True, tag="held"):
    """The request of a rule is held back: a budget of the job or of a policy is used up, or a factor is not usable.

    Attributes:
        action: The class of the rule's action.
        asked: The requested number.
        ranks: The ranks in the request.
        budget: The used-up budget as text, such as "8 replacements in 800 steps"; empty for a factor.
    """

    topic: ClassVar[Topic] = "held back"
    action: str
    asked: Number | None
    ranks: tuple[int, ...]
    budget: str

    def headline(self) -> str:
        """The request that is held back, and the reason.

        >>> held = HeldEvent(step=50, rule="held(stragglers)", saw={}, action="Replace", asked=None, ranks=(1, 3),
        ...                  budget="8 replacements in 800 steps")
        >>> held.headline()
        'step 50: stragglers asks for the replacement of rank 1, 3; held: 8 replacements in 800 steps are used up'
        """
        rule = self.rule.removeprefix("held(").removesuffix(")")
        if self.action == "ScaleLearningRate":
            factor = "NaN" if self.asked is None else figure(self.asked)
            return (
                f"step {figure(self.step)}: {rule} asks for a factor of {factor} on the learning rate, which takes a "
                "finite number above 0; the last factor stays, and this is reported once"
            )
        are = "is" if self.budget.startswith("1 ") else "are"
        return f"step {figure(self.step)}: {rule} asks for {_action(self)}; held: {self.budget} {are} used up"


def _action(event: ShadowEvent | HeldEvent) -> str:
    ranks = ", ".join(str(rank) for rank in event.ranks)
    what = _ACTIONS.get(event.action, event.action) + (f": {figure(event.asked)}" if event.asked is not None else "")
    return what + (f" rank {ranks}" if ranks else "")
