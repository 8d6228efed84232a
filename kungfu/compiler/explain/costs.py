"""Costs: messages, bytes and state of a plan, as numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kungfu.compiler.plan import MessageLayout, Plan

_FLOAT_BYTES = 4
_STATE_BYTES = {"bool": 1, "int64": 8, "float32": 4}


@dataclass(frozen=True)
class Costs:
    """The cost of a plan per step, beyond the gradients.

    Attributes:
        messages_per_step: Messages of every step.
        gated_messages: Messages in the steps of their gates only.
        fixed_floats: Floats on the gradient all-reduce, whatever the size.
        floats_per_peer: Floats on the gradient all-reduce for each peer of the cluster.
        state_bytes: Bytes of the folds' states at size 1.
        folds: Folds.
    """

    messages_per_step: int
    gated_messages: int
    fixed_floats: int
    floats_per_peer: int
    state_bytes: int
    folds: int


def costs_of(plan: Plan) -> Costs:
    """The costs of a plan."""
    fields = [one.type for fold in plan.folds for one in fold.recurrence.updates]
    return Costs(
        plan.messages_per_step,
        sum(1 for one in plan.after if one.message and one.gates),
        len(plan.piggybacked.scalars),
        len(plan.piggybacked.vectors),
        sum(_STATE_BYTES[one.dtype] * math.prod(one.extents(1)) for one in fields),
        len(plan.folds),
    )


def cost_lines(plan: Plan) -> Iterator[str]:
    """The costs of a plan in words."""
    costs = costs_of(plan)
    yield f"{counted(costs.messages_per_step, 'extra message')} per step"
    if costs.gated_messages:
        yield f"{counted(costs.gated_messages, 'small message')} more in the steps of their gates"
    yield f"{length(plan.piggybacked)} per step on the gradient all-reduce"
    yield f"{counted(costs.state_bytes, 'byte')} of state in {counted(costs.folds, 'fold')}"


def length(layout: MessageLayout) -> str:
    """The floats and bytes of a message, in terms of the size where it holds vectors."""
    fixed, growing = len(layout.scalars), len(layout.vectors)
    if not growing:
        return f"{counted(fixed, 'float')} ({counted(fixed * _FLOAT_BYTES, 'byte')})"
    return f"{fixed} + {growing} x size floats ({fixed * _FLOAT_BYTES} + {growing * _FLOAT_BYTES} x size bytes)"


def counted(number: int, noun: str) -> str:
    """``1 float``, ``2 floats``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
