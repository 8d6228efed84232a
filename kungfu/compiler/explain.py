"""Explain: a plan as text, stage by stage, in the user's names, with what it costs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from kungfu.compiler.plan import Plan, RiderLayout, Segment
from kungfu.control import Action, Call, Rescale, Rule, SetGlobalBatchSize, SetLearningRate
from kungfu.control.action import operands
from kungfu.errors import InternalError
from kungfu.signal import SOURCES, Collective, Constant, Fold, Map, Signal, Source, is_exact

__all__ = ["explain"]

_FLOAT_BYTES = 4
_STATE_BYTES = {"bool": 1, "int64": 8, "float32": 4}

Labels = Mapping[Signal, str]


def explain(plan: Plan) -> str:
    """What the rules ask for, what is computed when, what rides on the gradients, and what it all costs a step.

    A node stands under its name, else under a number; leaves, and what is a function of step and size alone, stand as
    themselves. Each line says how the node is made, whether it is local or agreed, its dtype, and the policy's line
    that made it.
    """
    return "\n".join(_lines(plan, _labels(plan))) + "\n"


def _labels(plan: Plan) -> Labels:
    labels: dict[Signal, str] = {}
    names = {signal: name for name, signal in plan.watched_signals.items()}
    numbers = count(1)
    for node in plan.nodes:
        if isinstance(node, (Source, Constant)):
            labels[node] = node.source if isinstance(node, Source) else repr(node.value)
        elif isinstance(node, Map) and is_exact(node):
            labels[node] = f"({_made(node, labels)})"
        else:
            labels[node] = names.get(node) or f"%{next(numbers)}"
    return labels


def _lines(plan: Plan, labels: Labels) -> Iterator[str]:
    shown: set[Signal] = set()
    for rule in plan.rules:
        yield from _rule(rule, labels)
    yield "reads"
    yield from (f"  {one}" for one in _reads(plan))
    yield "before the gradient all-reduce"
    yield from _stage(plan.before, labels, shown)
    yield f"rides on the gradient all-reduce: {_length(plan.riders)}"
    yield from (f"  {_node(one, labels)}" for one in plan.riders.collectives)
    yield "after the gradient all-reduce"
    yield from _stage(plan.after, labels, shown)
    yield "costs"
    yield from (f"  {one}" for one in _costs(plan))


def _rule(rule: Rule, labels: Labels) -> Iterator[str]:
    does = _does(rule.action, labels)
    seen = ", ".join(name if labels[one] == name else f"{name} {labels[one]}" for name, one in rule.saw.items())
    yield f"rule {rule.name}"
    yield f"  looks {_steps((rule.gate,), labels)}"
    yield f"  fires where {labels[rule.fires]}: {does}"
    yield f"  logs {seen or 'nothing'}"


def _does(action: Action, labels: Labels) -> str:
    arguments = ", ".join(labels[one] for one in operands(action))
    if isinstance(action, Rescale):
        return f"rescale to {arguments} peers, keep {action.keep}"
    if isinstance(action, SetGlobalBatchSize):
        return f"set the global batch size to {arguments} samples"
    if isinstance(action, SetLearningRate):
        return f"set the learning rate to {arguments}" + (f" over {action.over:g} {action.unit}" if action.over else "")
    if isinstance(action, Call):
        return f"call {getattr(action.fn, '__name__', 'a function')}({arguments})"
    return f"{type(action).__name__.lower()} {arguments}".rstrip()


def _reads(plan: Plan) -> Iterator[str]:
    for name in sorted(plan.sources):
        kind = SOURCES[name]
        unit = f", {kind.unit}" if kind.unit else ""
        yield f"{name}: {kind.placement} {kind.type}{unit}; {kind.meaning}"


def _stage(segments: tuple[Segment, ...], labels: Labels, shown: set[Signal]) -> Iterator[str]:
    """The segments' nodes that no earlier segment shows; what is needed in two stages is computed in both."""
    for segment in segments:
        nodes = [one for one in segment.nodes if one not in shown and not _is_plain(one)]
        shown.update(nodes)
        if nodes or segment.message:
            yield f"  {_steps(segment.gates, labels)}"
        yield from (f"    {_node(one, labels)}" for one in nodes)
        if segment.message:
            yield f"    one message of {_length(segment.message)}"
            yield from (f"      {_node(one, labels)}" for one in segment.message.collectives)


def _is_plain(node: Signal) -> bool:
    """Whether a node stands as itself wherever it is used, and needs no line."""
    return isinstance(node, (Source, Constant)) or is_exact(node)


def _steps(gates: Iterable[Signal], labels: Labels) -> str:
    conditions = [labels[one] for one in gates if not isinstance(one, Constant)]
    return f"only in steps with {' or '.join(conditions)}" if conditions else "in every step"


def _node(node: Signal, labels: Labels) -> str:
    path, _, line = node.origin.rpartition(":")
    where = f"  [{os.path.basename(path)}:{line}]" if node.origin else ""
    return f"{labels[node]} = {_made(node, labels)}: {node.placement} {node.type}{where}"


def _made(node: Signal, labels: Labels) -> str:
    if isinstance(node, Map):
        return _applied(node, [labels[one] for one in node.operands])
    if isinstance(node, Collective):
        kind = "all_gather" if node.reduction == "gather" else f"all_reduce {node.reduction}"
        return f"{kind}({labels[node.operand]})"
    if isinstance(node, Fold):
        sampled = "" if isinstance(node.gate, Constant) else f" where {labels[node.gate]}"
        inputs = _names(node.observed, labels)
        return f"{node.recurrence.label}({inputs}){sampled}, {node.on_rescale} on rescale"
    raise InternalError(f"{node!r} is a leaf and needs no line of its own")


def _applied(node: Map, operands: list[str]) -> str:
    """As Python writes it."""
    operation = node.operation
    if not operation.symbol:
        return f"{operation.name}({', '.join(operands)})"
    return operation.symbol + operands[0] if len(operands) == 1 else f" {operation.symbol} ".join(operands)


def _names(nodes: Iterable[Signal], labels: Labels) -> str:
    return ", ".join(labels[one] for one in nodes)


def _costs(plan: Plan) -> Iterator[str]:
    yield f"{_counted(plan.messages_per_step, 'extra message')} per step"
    gated = sum(1 for one in plan.after if one.message and one.gates)
    if gated:
        yield f"{_counted(gated, 'small message')} more in the steps of their gates"
    yield f"{_length(plan.riders)} per step on the gradient all-reduce"
    state = sum(_STATE_BYTES[one.type.dtype] for fold in plan.folds for one in fold.recurrence.updates)
    yield f"{_counted(state, 'byte')} of state in {_counted(len(plan.folds), 'fold')}"


def _length(layout: RiderLayout) -> str:
    """The floats and bytes of a message, in terms of the size where it holds vectors."""
    fixed, growing = len(layout.scalars), len(layout.vectors)
    if not growing:
        return f"{_counted(fixed, 'float')} ({_counted(fixed * _FLOAT_BYTES, 'byte')})"
    return f"{fixed} + {growing} x size floats ({fixed * _FLOAT_BYTES} + {growing * _FLOAT_BYTES} x size bytes)"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
