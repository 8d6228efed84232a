"""Decisions in words: the requests of rules, the values that they saw, and the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kungfu.cli.report.values import counted, figure, finite_number, label, peers_named
from kungfu.event_log.events import (
    CalledEvent,
    DecisionEvent,
    HeldEvent,
    RefusedEvent,
    RuleEvent,
    SetEvent,
    SettingRun,
    ShadowEvent,
    SupersededEvent,
)

_ACTIONS = {
    "Rescale": "another size",
    "SetGlobalBatchSize": "another batch",
    "SetLearningRate": "another learning rate",
    "Stop": "the end of training",
    "Call": "a call",
    "Evict": "the eviction of",
    "Replace": "the replacement of",
    "Checkpoint": "a checkpoint",
}


def refused(event: RefusedEvent) -> str:
    """What was refused: a size, others in place of some peers, or both."""
    others = [f"others in place of {peers_named(event.peers)}"] if event.peers else []
    size = [counted(event.asked, "peer")] if event.asked != event.size or not others else []
    return " and ".join([*size, *others])


def reasons(saw: Mapping[str, object], *, without: Iterable[str] = ("size", "target")) -> str:
    """The values that a rule saw, by name."""
    hidden = {*without}
    return ", ".join(f"{label(name)} {figure(value)}" for name, value in saw.items() if name not in hidden)


def asked(event: DecisionEvent) -> str:
    """The request of a decision, beside the present size.

    >>> decision = DecisionEvent(step=50, rule="grow", saw={}, size=2, asked=3, done="")
    >>> asked(decision)
    '3 peers instead of 2'
    """
    # Replacements leave the size as it is: the peers are what matters.
    if event.when == "replaced":
        return f"{peers_named(event.peers)} replaced"
    # A rule may find its target reached by the time of the barrier.
    if event.asked == event.size:
        return f"to stay at {counted(event.size, 'peer')}"
    return f"{counted(event.asked, 'peer')} instead of {figure(event.size)}"


# ---- rules that stand for several policies ---------------------------------------------------------------------------


def contest(event: DecisionEvent) -> list[str]:
    """The requests of a merged rule's policies, and whose target was taken; empty for a rule that was not merged.

    >>> saw = {"grow": 4.0, "schedule": 3.0, "target": 3.0}
    >>> decision = DecisionEvent(step=50, rule="at_most(grow, schedule)", saw=saw, size=2, asked=3, done="",
    ...                          won=("schedule",), lost=("grow",))
    >>> contest(decision)
    ['grow wanted 4, schedule wanted 3: schedule won']
    """
    names = [name for name in event.saw if name in (*event.won, *event.lost)]
    # A rule of one policy has no candidates.
    if not names:
        return []
    wishes = ", ".join(f"{name} wanted {figure(event.saw[name])}" for name in names)
    # What was taken may be that of a policy without a target yet.
    return [f"{wishes}: {' and '.join(event.won) or 'none'} won"]


def superseded(event: SupersededEvent) -> str:
    """A request that came to nothing, and what came before it.

    >>> superseded(SupersededEvent(step=50, rule="hook", saw={}, asked=3, by="grow"))
    'step 50: hook wanted 3 peers; nothing came of it, since grow came before it'
    """
    what = event.what or counted(event.asked, "peer")
    # It was about single peers, by eviction or replacement.
    if event.peers:
        what = f"{peers_named(event.peers)} {'replaced' if event.when == 'replaced' else 'to leave'}"
    return f"{_start(event)} wanted {what}; {passed_over(event)}"


def is_by_itself(event: object) -> bool:
    """True if a rule has asked anew, in place of what it had asked for: its later decision says it all."""
    return isinstance(event, SupersededEvent) and event.by == event.rule and event.later is not None


def passed_over(event: SupersededEvent) -> str:
    """Why nothing came of a request.

    >>> passed_over(SupersededEvent(step=10, rule="grow", saw={}, asked=3, by="stop_on_nan", later=57))
    'nothing came of it, since stop_on_nan came after it, at step 57'
    """
    when = "before it" if event.later is None else f"after it, at step {figure(event.later)}"
    return f"nothing came of it, since {event.by} came {when}"


def requested_by_hook(event: CalledEvent) -> str:
    """The request of a hook."""
    also = ", ".join(event.also)
    # A hook may ask for other things than a size.
    if event.asked is None:
        return f"it asks for {also}" if also else "it wants no change of size"
    return f"it wants {counted(event.asked, 'peer')}" + (f", and {also}" if also else "")


def would_have(event: ShadowEvent) -> str:
    """The request that a rule in the shadow would have made."""
    return f"{_start(event)} would have asked for {_action(event)}"


def held_back(event: HeldEvent) -> str:
    """The request of a rule when the job's budget, or its policy's, was used up.

    >>> held = HeldEvent(step=50, rule="held(stragglers)", saw={}, action="Replace", asked=None, ranks=(1, 3),
    ...                  budget="8 replacements in 800 steps")
    >>> held_back(held)
    'step 50: stragglers asks for the replacement of rank 1, 3; held: 8 replacements in 800 steps are used up'
    """
    rule = event.rule.removeprefix("held(").removesuffix(")")
    are = "is" if event.budget.startswith("1 ") else "are"
    used_up = f"held: {event.budget} {are} used up"
    budget = used_up if event.budget else "held back, for its budget of rescales is used up"
    return f"step {figure(event.step)}: {rule} asks for {_action(event)}; {budget}"


def _action(event: ShadowEvent | HeldEvent) -> str:
    ranks = ", ".join(str(rank) for rank in event.ranks)
    what = _ACTIONS.get(event.action, event.action) + (f": {figure(event.asked)}" if event.asked is not None else "")
    return what + (f" rank {ranks}" if ranks else "")


def _start(event: RuleEvent) -> str:
    return f"step {figure(event.step)}: {event.rule}"


# ---- settings --------------------------------------------------------------------------------------------------------


def set_to(event: SetEvent) -> str:
    """A setting that a barrier changed."""
    if event.what == "stop":
        return f"{_start(event)} ends training"
    length = f" over {figure(event.over)} {event.unit}" if finite_number(event.over) else ""
    return f"{_start(event)} sets the {event.what} to {figure(event.to)}{length}"


def set_repeatedly(run: SettingRun) -> str:
    """A setting that one rule changed again and again.

    >>> from msgspec.structs import replace
    >>> first = SetEvent(step=10, rule="decay", saw={}, what="learning rate", to=0.125, over=0.0, unit="steps")
    >>> set_repeatedly(SettingRun(first, replace(first, step=19, to=0.0525), 10))
    'steps 10 to 19: decay sets the learning rate 10 times, from 0.125 to 0.0525'
    """
    first, last = run.first, run.last
    steps = f"steps {figure(first.step)} to {figure(last.step)}"
    values = f"from {figure(first.to)} to {figure(last.to)}"
    return f"{steps}: {first.rule} sets the {first.what} {figure(run.times)} times, {values}"
