"""Labels: the name and the expression of each node of a plan, in the user's names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import count

from kungfu.compiler.compiled_policies import CompiledPolicies
from kungfu.control import (
    Action,
    Call,
    Checkpoint,
    Rescale,
    Restore,
    ScaleLearningRate,
    SetGlobalBatchSize,
    SetLearningRate,
    SetVariable,
    Synchronise,
)
from kungfu.control.action import operands
from kungfu.control.rule import distinct_name
from kungfu.errors import InternalError
from kungfu.signal import SOURCES, Collective, Constant, Fold, Map, Signal, Source, is_exact, topological
from kungfu.signal.source_location import variable_at

Labels = Mapping[Signal, str]


def labels_of(plan: CompiledPolicies) -> Labels:
    """The label of each node: its name, else the variable that the policy assigns it to, else a number. Leaves, and
    functions of step and size alone, are shown as expressions."""
    order = topological((*plan.nodes, *(root for rule in plan.on_rescale for root in rule.roots)))
    given = names_of(plan, order)
    labels: dict[Signal, str] = {}
    numbers = count(1)
    for node in order:
        if isinstance(node, (Source, Constant)):
            labels[node] = source_label(node) if isinstance(node, Source) else repr(node.value)
        elif isinstance(node, Map) and is_exact(node):
            labels[node] = f"({made(node, labels)})"
        else:
            labels[node] = given.get(node) or f"%{next(numbers)}"
    return labels


def source_label(node: Source) -> str:
    """The label of a source: its name, but ``newly_fed(name)`` for a fed source, whose name labels a fold."""
    return f"newly_fed({node.source})" if node.kind.given_by == "feed" else node.source


def names_of(plan: CompiledPolicies, order: Iterable[Signal]) -> dict[Signal, str]:
    """The names of nodes, by ``.named`` or by an assigned variable, which names the last node created on its line."""
    names = {signal: name for name, signal in plan.watched_signals.items()}
    last = {node.origin: node for node in order if not is_plain(node)}
    used = {*names.values(), *SOURCES, *plan.source_kinds}
    for origin, node in last.items():
        variable = variable_at(origin)
        if variable and node not in names:
            names[node] = distinct_name(variable, used=used)
            used.add(names[node])
    return names


def is_plain(node: Signal) -> bool:
    """True if a node is shown as an expression wherever it is used, without a separate line."""
    return isinstance(node, (Source, Constant)) or (isinstance(node, Map) and is_exact(node))


def is_number(label: str) -> bool:
    """True if a label is a number, such as ``%3``, instead of a name."""
    return label.startswith("%") and label[1:].isdecimal()


def made(node: Signal, labels: Labels) -> str:
    """The expression of a node, with the labels of its inputs as operands."""
    if isinstance(node, Map):
        return _applied(node, [labels[one] for one in node.operands])
    if isinstance(node, Collective):
        kinds = {"gather": "all_gather", "carry": "carry from rank 0"}
        return f"{kinds.get(node.reduction, f'all_reduce {node.reduction}')}({labels[node.operand]})"
    if isinstance(node, Fold):
        sampled = "" if isinstance(node.gate, Constant) else f" where {labels[node.gate]}"
        inputs = ", ".join(labels[one] for one in node.observed)
        return f"{node.recurrence.label}({inputs}){sampled}, {node.on_rescale} on rescale"
    raise InternalError(f"{node!r} is a leaf and needs no line of its own")


def _applied(node: Map, operands: list[str]) -> str:
    """The operation of `node` applied to these operands, in Python's syntax."""
    operation = node.operation
    if operation.name == "take":
        return f"{operands[0]}[{operands[1]}]"
    if not operation.symbol:
        return f"{operation.name}({', '.join(operands)})"
    return operation.symbol + operands[0] if len(operands) == 1 else f" {operation.symbol} ".join(operands)


def does(action: Action, labels: Labels) -> str:
    """The request of an action, as part of a sentence."""
    arguments = ", ".join(labels[one] for one in operands(action))
    if isinstance(action, Rescale):
        most = f" up to {action.max_global_batch} samples a step" if action.max_global_batch else ""
        beside = [f"a global batch size of {labels[action.batch]}"] if action.batch is not None else []
        over = f" over {action.ramp_length:g} {action.unit}" if action.ramp_length else ""
        beside += [f"a learning rate of {labels[action.rate]}{over}"] if action.rate is not None else []
        together = f", with {' and '.join(beside)}" if beside else ""
        return f"rescale to {labels[action.target]} peers, keep {action.keep}{most}{together}"
    if isinstance(action, SetGlobalBatchSize):
        return f"set the global batch size to {arguments} samples"
    if isinstance(action, SetLearningRate):
        return f"set the learning rate to {arguments}" + (
            f" over {action.ramp_length:g} {action.unit}" if action.ramp_length else ""
        )
    if isinstance(action, ScaleLearningRate):
        return f"multiply the learning rate of {action.step} by {labels[action.target]}, as {labels[action.in_force]}"
    if isinstance(action, Synchronise):
        return f"average the models every {arguments} steps"
    if isinstance(action, SetVariable):
        return f"set {action.name} to {arguments}"
    if isinstance(action, Call):
        return f"call {getattr(action.fn, '__name__', 'a function')}({arguments})"
    arguments = action.name if isinstance(action, (Checkpoint, Restore)) else arguments
    return f"{type(action).__name__.lower()} {arguments}".rstrip()


def where(origin: str) -> str:
    """The file and the line that created a node, as text to print after the node's label."""
    return f"  [{os.path.basename(origin)}]" if origin else ""


def steps(gates: Iterable[Signal], labels: Labels) -> str:
    """The steps in which one of these gates is on, as text."""
    conditions = [labels[one] for one in gates if not isinstance(one, Constant)]
    return f"only in steps with {' or '.join(conditions)}" if conditions else "in every step"
