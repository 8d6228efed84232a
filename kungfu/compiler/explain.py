"""Explain: a plan as text, stage by stage, in the user's names, with what it costs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from kungfu.compiler.plan import Plan, RiderLayout, Segment
from kungfu.control import Rescale, Rule
from kungfu.signal import Collective, Constant, Fold, Map, Signal, Source

__all__ = ["explain"]

_FLOAT_BYTES = 4
_STATE_BYTES = {"bool": 1, "int64": 8, "float32": 4}


def explain(plan: Plan) -> str:
    """The nodes by stage with their placement, what rides on the gradients, and messages and bytes a step."""
    labels = {node: f"%{index}" for index, node in enumerate(plan.nodes)}
    return "\n".join(_lines(plan, labels)) + "\n"


def _lines(plan: Plan, labels: Mapping[Signal, str]) -> Iterator[str]:
    yield _count(len(plan.rules), "rule")
    for rule in plan.rules:
        yield f"  {_rule(rule, labels)}"
    yield "before the gradient all-reduce"
    yield from _stage(plan.before, labels)
    yield f"rides on the gradient all-reduce: {_length(plan.riders)}"
    yield from (f"  {_node(one, labels)}" for one in plan.riders.collectives)
    yield "after it"
    yield from _stage(plan.after, labels)
    yield "cost"
    yield f"  {_count(plan.messages_per_step, 'extra message')} per step"
    yield from _gated_messages(plan)
    yield f"  {_length(plan.riders)} on the gradient all-reduce"
    yield f"  {_state_bytes(plan)} bytes of state in {_count(len(plan.folds), 'fold')}"


def _rule(rule: Rule, labels: Mapping[Signal, str]) -> str:
    if isinstance(rule.action, Rescale):
        does = f"rescale to {labels[rule.action.target]}, keeping {rule.action.keep}"
    else:
        name = getattr(rule.action.fn, "__name__", "a function")
        does = f"call {name}({', '.join(labels[one] for one in rule.action.signals)})"
    seen = ", ".join(f"{name} {labels[one]}" for name, one in rule.saw.items())
    return f"{rule.name}: where {labels[rule.fires]}, {does}; it sees {seen or 'nothing'}"


def _stage(segments: tuple[Segment, ...], labels: Mapping[Signal, str]) -> Iterator[str]:
    for segment in segments:
        yield f"  {_when(segment, labels)}"
        yield from (f"    {_node(one, labels)}" for one in segment.nodes)
        if segment.message:
            yield f"    one message of {_length(segment.message)}"
            yield from (f"      {_node(one, labels)}" for one in segment.message.collectives)


def _when(segment: Segment, labels: Mapping[Signal, str]) -> str:
    if not segment.gates:
        return "in every step"
    return "only in the steps of " + " or ".join(labels[one] for one in segment.gates)


def _node(node: Signal, labels: Mapping[Signal, str]) -> str:
    inputs = ", ".join(labels[one] for one in node.inputs)
    name = f"  {node.name!r}" if node.name else ""
    place, _, line = node.origin.rpartition(":")
    where = f"  [{os.path.basename(place)}:{line}]" if node.origin else ""
    return f"{labels[node]} = {_what(node)}({inputs}): {node.placement} {node.type}{name}{where}"


def _what(node: Signal) -> str:
    if isinstance(node, Source):
        return node.source
    if isinstance(node, Constant):
        return repr(node.value)
    if isinstance(node, Map):
        return node.operation.name
    if isinstance(node, Collective):
        return "all_gather" if node.reduction == "gather" else f"all_reduce {node.reduction}"
    assert isinstance(node, Fold)
    return f"fold, {node.on_rescale} on rescale, "


def _gated_messages(plan: Plan) -> Iterator[str]:
    gated = sum(1 for one in plan.after if one.message and one.gates)
    if gated:
        yield f"  {_count(gated, 'small message')} more in the steps of their gates"


def _length(layout: RiderLayout) -> str:
    """The floats and bytes of a message, per peer where it holds vectors."""
    fixed, growing = len(layout.scalars), len(layout.vectors)
    if not growing:
        return f"{_count(fixed, 'float')} ({fixed * _FLOAT_BYTES} bytes)"
    return f"{fixed} + {growing} x size floats ({fixed * _FLOAT_BYTES} + {growing * _FLOAT_BYTES} x size bytes)"


def _state_bytes(plan: Plan) -> int:
    return sum(_STATE_BYTES[one.type.dtype] for fold in plan.folds for one in fold.recurrence.updates)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
