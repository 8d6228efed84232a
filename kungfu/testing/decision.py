"""What a policy decided in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kungfu.compiler import Outcome, Plan
from kungfu.compiler.plan import inputs_of_rules
from kungfu.control import Action
from kungfu.control.action import mask_of

__all__ = ["Decision", "decisions_of"]


@dataclass(frozen=True)
class Decision:
    """A rule that fired: in which step, its name, its action, the number it asks for (NaN where it asks for none), the
    ranks of the peers that it is about, and the values that it saw.

    On a modelled cluster, `unmet` says why nothing came of it, where another rule came before it, or where the job's
    budget is used up (`over_budget`).
    """

    step: int
    rule: str
    action: Action
    value: float
    saw: Mapping[str, float]
    ranks: tuple[int, ...] = ()
    over_budget: bool = False
    unmet: str = ""


def decisions_of(plan: Plan, outcome: Outcome, *, step: int) -> Iterator[Decision]:
    """The rules that fired in a step, in the order of the plan; those in the shadow too, but none that is held back."""
    masks = iter(outcome.masks)
    saw = inputs_of_rules(plan, outcome.inputs, outcome.inputs_whole)
    for index, (rule, seen) in enumerate(zip(plan.rules, saw, strict=True)):
        marked = () if mask_of(rule.action) is None else tuple(int(one) for one in np.flatnonzero(next(masks)))
        if outcome.fired[index] and rule.mode != "held":
            over = bool(rule.budget) and seen[rule.budget] < 1
            yield Decision(step, rule.name, rule.action, float(outcome.targets[index]), seen, marked, over)
