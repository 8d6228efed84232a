"""What the rules of a step ask for: their traces in the ledger, read as wishes, settings and notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kungfu.compiler import Plan
from kungfu.compiler.plan import inputs_of_rules
from kungfu.control import Action, Call, Checkpoint, Evict, Replace, Rescale, SetGlobalBatchSize, SetLearningRate
from kungfu.control.action import mask_of
from kungfu.control.rule import RuleMode, verdict
from kungfu.runtime.api import Contest, ExternalRequest, Leave, RescaleRequest, SettingChange, Superseded, View, merged
from kungfu.training.graph.host import fetch
from kungfu.training.graph.ledger import Outcomes

__all__ = ["Fired", "Requests", "demanded", "fired_rules", "gathered"]


@dataclass(frozen=True)
class Fired:
    """A rule that fired after ``step``, the number or the ranks it asks for, and the values it saw.

    ``over_budget``: a hook was called, and what it asks for cannot be had, for the job's budget is used up.
    """

    action: Action
    rule: str
    step: int
    value: float
    ranks: tuple[int, ...]
    saw: Mapping[str, float]
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    standing: RuleMode = "acting"
    over_budget: bool = False


@dataclass(frozen=True)
class Requests:
    """What a barrier is asked for: a membership, other settings, and checkpoints, by who asks for them.

    ``wish`` is what the rules ask for together, ``outside`` what somebody else told the leader; ``superseded`` are the
    rules' wishes that are no part of it.
    """

    wish: RescaleRequest | None = None
    outside: RescaleRequest | None = None
    settings: tuple[SettingChange, ...] = ()
    checkpoints: tuple[str, ...] = ()
    superseded: tuple[Superseded, ...] = ()

    def with_outside(self) -> Requests:
        """The leader's: ``outside`` becomes what is asked for altogether; see ``core.barrier_requests``."""
        if self.outside is None:
            return self
        outside, superseded = merged([] if self.wish is None else [self.wish], self.outside)
        return replace(self, outside=outside, superseded=(*self.superseded, *superseded))

    def after(self, unanswered: Requests) -> Requests:
        """These, and those of a barrier that broke before it could answer: the newer ones come first."""
        wishes = [one for one in (self.wish, unanswered.wish) if one is not None]
        wish, superseded = merged(wishes)
        settings = (*unanswered.settings, *self.settings)
        checkpoints = (*unanswered.checkpoints, *self.checkpoints)
        told = (*unanswered.superseded, *self.superseded, *superseded)
        return Requests(wish, self.outside or unanswered.outside, settings, checkpoints, told)


def fired_rules(plan: Plan, outcomes: Outcomes, *, step: int) -> list[Fired]:
    """The rules that the ledger shows as fired, in the plan's order."""
    fired, targets, masks = fetch(outcomes.fired), fetch(outcomes.targets), fetch(outcomes.masks)
    saw = inputs_of_rules(plan, fetch(outcomes.saw), fetch(outcomes.saw_whole))
    found, row = [], 0
    for index, (rule, values) in enumerate(zip(plan.rules, saw, strict=True)):
        ranks: tuple[int, ...] = ()
        if mask_of(rule.action) is not None:
            ranks, row = tuple(int(rank) for rank in masks[row].nonzero()[0]), row + 1
        if fired[index]:
            won, lost = verdict(rule, values) if rule.candidates else ((), ())
            over = bool(rule.budget) and values[rule.budget] < 1
            target, standing = float(targets[index]), rule.mode
            found.append(Fired(rule.action, rule.name, step, target, ranks, values, won, lost, standing, over))
    return found


def gathered(fired: list[Fired], view: View, *, call: Callable[[Fired, Call], int | None]) -> Requests:
    """What rules that fired ask for together, in the order of the policies; ``call`` calls a hook and gives the size
    that it wants.

    A mask names ranks of ``view``.
    """
    wishes: list[RescaleRequest | None] = []
    settings: list[SettingChange] = []
    checkpoints: list[str] = []
    for one in fired:
        action = one.action
        if isinstance(action, Rescale):
            wishes.append(_wish(one, round(one.value), action.keep))
        elif isinstance(action, Call):
            wanted = call(one, action)
            wishes.append(None if wanted is None else _wish(one, wanted, "local_batch_size"))
        elif isinstance(action, Evict | Replace):
            wishes.append(_farewell(one, view))
        elif isinstance(action, Checkpoint):
            checkpoints.append(one.rule)
        else:
            settings.append(setting_of(one))
    wish, superseded = merged([one for one in wishes if one is not None])
    return Requests(wish, None, tuple(settings), tuple(checkpoints), superseded)


def _wish(fired: Fired, size: int, keep: Any) -> RescaleRequest:
    return RescaleRequest(size, keep, fired.rule, fired.step, fired.saw, Contest(fired.won, fired.lost))


def _farewell(fired: Fired, view: View) -> RescaleRequest | None:
    """The peers that a mask shows, by id: a rule knows ranks. ``None`` where it shows none."""
    peers = tuple(view.ids[rank] for rank in fired.ranks if rank < view.size)
    leave = Leave(peers, "now" if isinstance(fired.action, Evict) else "replaced")
    size = view.size - len(peers) if leave.when == "now" else view.size
    contest = Contest(fired.won, fired.lost)
    return (
        RescaleRequest(size, "local_batch_size", fired.rule, fired.step, fired.saw, contest, leave) if peers else None
    )


def demanded(requests: Requests, demand: ExternalRequest, *, step: int) -> Requests:
    """What a barrier is asked for when somebody outside demands something too."""
    if demand.kind == "stop":
        return replace(requests, settings=(*requests.settings, SettingChange("stop", math.nan, demand.why, step)))
    if demand.kind == "checkpoint":
        return replace(requests, checkpoints=(*requests.checkpoints, demand.why))
    leave: Leave | None = None
    if demand.kind != "resize":
        when: dict[str, Any] = {"leave": "now", "notice": "noticed", "replace": "replaced"}
        leave = Leave(demand.peers, when[demand.kind], demand.host)
    return replace(requests, outside=RescaleRequest(demand.size, demand.keep, demand.why, step, leave=leave))


def setting_of(fired: Fired) -> SettingChange:
    """The setting that a fired rule asks for."""
    name, action = fired.rule, fired.action
    if isinstance(action, SetLearningRate):
        return SettingChange("learning_rate", fired.value, name, fired.step, fired.saw, action.over, action.unit)
    return SettingChange(
        "global_batch_size" if isinstance(action, SetGlobalBatchSize) else "stop",
        fired.value,
        name,
        fired.step,
        fired.saw,
    )
