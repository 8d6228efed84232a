"""A rule: when it may look, when it fires, what it asks for, and which values it saw."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from kungfu.control.action import Action, SetLearningRate, target_of
from kungfu.control.pace import NO_COOLDOWN, once_each, with_cooldown
from kungfu.signal import Fold, Signal, Source
from kungfu.signal.source_location import location_of_caller

if TYPE_CHECKING:
    from kungfu.control.trigger import Trigger

__all__ = ["Rule", "Standing", "distinct_name", "label_of", "paced", "seen_under", "verdict"]

Standing = Literal["acting", "shadow", "held"]

# What bounds a decision, and is no ground for it.
_UNTOLD = frozenset({"min_size", "max_size", "refused_size", "epoch_samples"})


@dataclass(frozen=True, eq=False)
class Rule:
    """Trigger and action: in the steps of its `gate`, the rule `fires` where its `when` holds and it has news to ask.

    In a plan, `fires` is the whole truth; as a policy makes it, the trigger's cooldown comes on top. A rule that
    stands in the `shadow` is evaluated and logged, and nobody acts on it; one that is `held` fires where the job's
    budget held another one back, and is logged too. `contenders` are the names, among what it saw, under which the
    wishes stand that it chose from, where it stands for several rules; `budget` is the name of how many changes of the
    cluster the budget has left for what a hook asks for, if there is one. `origin` is the user's line that
    made it.
    """

    name: str
    trigger: Trigger
    fires: Signal
    action: Action
    saw: Mapping[str, Signal]
    standing: Standing = "acting"
    contenders: tuple[str, ...] = ()
    budget: str = ""
    origin: str = field(default_factory=location_of_caller)

    @property
    def gate(self) -> Signal:
        """In which steps the rule is looked at: a function of step and size."""
        return self.trigger.gate

    @property
    def when(self) -> Signal:
        """What must hold in those steps."""
        return self.trigger.predicate


def paced(rule: Rule) -> Rule:
    """The rule with its cooldown built into `fires`."""
    trigger, action = rule.trigger, rule.action
    if trigger.occasion == "rescale":
        return rule
    target = target_of(action)
    # What a shadow asks for does not come about, and a rate is on its way for long: neither shows what was asked for.
    if target is not None and (isinstance(action, SetLearningRate) or rule.standing == "shadow"):
        fires = once_each(rule.fires, target=target, gate=trigger.gate, cooldown=trigger.pause)
    else:
        fires = with_cooldown(rule.fires, gate=trigger.gate, cooldown=trigger.pause)
    return replace(rule, trigger=replace(trigger, pause=NO_COOLDOWN), fires=fires)


def verdict(rule: Rule, saw: Mapping[str, float]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whose wish won and whose lost, by name, where a rule that stands for several fired and saw these values.

    A contender that had no wish yet (NaN) is in neither.
    """
    wishes = {name: saw[name] for name in rule.contenders if not math.isnan(saw[name])}
    won = tuple(name for name, wish in wishes.items() if wish == saw["target"])
    return won, tuple(name for name in wishes if name not in won)


def seen_under(signal: Signal) -> dict[str, Signal]:
    """What a log should show beside a value: the named signals it is made of, and the sources not under one of them."""
    seen: dict[str, Signal] = {}
    visited: set[tuple[Signal, bool]] = set()
    stack = [(signal, False)]
    while stack:
        node, inside = stack.pop()
        if (node, inside) in visited:
            continue
        visited.add((node, inside))
        plain = isinstance(node, Source) and (inside or node.source in _UNTOLD)
        if label_of(node) and node.placement == "agreed" and not plain:
            seen.setdefault(label_of(node), node)
        below = node.observed if isinstance(node, Fold) else node.inputs
        stack.extend((one, inside or bool(node.name)) for one in reversed(below))
    return seen


def label_of(signal: Signal) -> str:
    """The name that the user gave, else the name of the source, else nothing."""
    return signal.name or (signal.source if isinstance(signal, Source) else "")


def distinct_name(name: str, *, taken: Container[str]) -> str:
    """This name, or with the first number from 2 on under which it is not taken."""
    count, free = 1, name
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    return free
