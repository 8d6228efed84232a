"""A plan as JSON, so that the record of a run contains the plan that ran, but not the source of its policies.

A plan is pure data: nodes, types, constants. Every node is written once, after its inputs, and referred to by its
number. Operations are written by their name in kungfu's vocabulary; for a function (a hook, for example) only the name
and the module are written, since its body cannot be serialized.

The outline of a plan is for a comparison with another peer's plan. In an outline, the text of a node represents the
node's expression down to the sources, so two nodes have the same text exactly if they compute the same value. Line
numbers and variable names of the program make no difference.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from kungfu.compiler.compiled_policies import CompiledPolicies
from kungfu.compiler.explain.labels import Labels, does, is_plain, labels_of, made, steps, where
from kungfu.errors import InternalError, UsageError
from kungfu.signal import Constant, Fold, Signal, topological
from kungfu.signal.operation import VOCABULARY, Operation

# Renaming a class, a field or an operation requires another schema number.
PLAN_SCHEMA = 2


@dataclass(frozen=True)
class _Elsewhere:
    """A placeholder for a function of which only the name is known."""

    __name__: str

    def __call__(self, *_: object) -> None:
        raise UsageError(f"{self.__name__} belongs to the program that was recorded; a replay knows only its name")


def plan_to_json(plan: CompiledPolicies) -> dict[str, Any]:
    """The plan as JSON values; raises `InternalError` if the plan contains a value that cannot be written."""
    numbers = node_numbers(plan)
    nodes = [record_to_json(node, numbers) for node in numbers]
    return {"schema": PLAN_SCHEMA, "nodes": nodes, "plan": record_to_json(plan, numbers)}


def node_numbers(plan: CompiledPolicies) -> dict[Signal, int]:
    """The index of each node of a plan, in an order where inputs, and the nodes inside a fold, precede the node."""
    order = dict.fromkeys(_nodes(topological(_signals_in(plan))))
    return {node: number for number, node in enumerate(order)}


def plan_from_json(content: Mapping[str, Any]) -> CompiledPolicies:
    """The plan that `plan_to_json` serialized.

    Raises:
        UsageError: `content` is not a plan, or has another schema.

    >>> from kungfu.compiler import compile_policies, explain
    >>> from kungfu.policies import schedule
    >>> plan = compile_policies([schedule({100: 4})])
    >>> explain(plan_from_json(plan_to_json(plan))) == explain(plan)
    True
    """
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if schema != PLAN_SCHEMA:
        raise UsageError(
            f"this is a plan of schema {schema!r}, and this kungfu reads schema {PLAN_SCHEMA}: use the version of "
            "kungfu that recorded the run, or record it again"
        )
    nodes: list[Any] = []
    try:
        for one in content["nodes"]:
            nodes.append(_decoded(one, nodes))
        plan = _decoded(content["plan"], nodes)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UsageError(f"this plan cannot be read ({type(error).__name__}: {error}); record the run again") from error
    if not isinstance(plan, CompiledPolicies):
        raise UsageError(f"this is a {type(plan).__name__}, and no plan; record the run again")
    return plan


def _nodes(order: Iterable[Signal]) -> Iterator[Signal]:
    """Yields every node after its inputs, and every fold also after the nodes inside it."""
    for node in order:
        if isinstance(node, Fold):
            yield from topological(tuple(_signals_in(node.recurrence)))
        yield node


def _signals_in(value: object) -> Iterator[Signal]:
    """The signals that a value refers to directly, without their inputs."""
    if isinstance(value, Signal):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _signals_in(entry)
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _signals_in(entry)
    elif dataclasses.is_dataclass(value) and not isinstance(value, Operation | type):
        for field in _fields(value):
            yield from _signals_in(getattr(value, field.name))


def _fields(value: Any) -> Iterator[dataclasses.Field[Any]]:
    """The fields of a record that belong to the plan."""
    return (one for one in dataclasses.fields(value) if one.init and one.metadata.get("in_plan", True))


# ---- writing -------------------------------------------------------------------------------------------------------


def record_to_json(value: Any, numbers: Mapping[Signal, int]) -> dict[str, Any]:
    """An instance of a plan's dataclass as JSON values, with a number in place of each node."""
    name = type(value).__name__
    if name not in _classes_with(name):
        raise InternalError(f"a plan holds a {name}, and nothing says how it is written")
    fields = {field.name: _encoded(getattr(value, field.name), numbers) for field in _fields(value)}
    return {"is": name, **fields}


def _encoded(value: Any, numbers: Mapping[Signal, int]) -> Any:
    if isinstance(value, Signal):
        return {"node": numbers[value]}
    if isinstance(value, Operation):
        if VOCABULARY.get(value.name) != value:
            raise InternalError(f"the operation {value.name!r} is not in the vocabulary, so its name does not say it")
        return {"operation": value.name}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {"entries": [[key, _encoded(entry, numbers)] for key, entry in value.items()]}
    if isinstance(value, tuple | list):
        return [_encoded(entry, numbers) for entry in value]
    if dataclasses.is_dataclass(value):
        return record_to_json(value, numbers)
    if callable(value):
        return {"function": getattr(value, "__name__", type(value).__name__), "defined": _defined(value)}
    raise InternalError(f"a plan holds {value!r}, and nothing says how it is written")


def _defined(function: Any) -> str:
    """The module and the qualified name of a function, of the function in a partial, or of the class of an object."""
    function = getattr(function, "func", function)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


# ---- reading -------------------------------------------------------------------------------------------------------


def _decoded(value: Any, nodes: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(entry, nodes) for entry in value)
    if not isinstance(value, dict):
        return value
    # The key of an object names its kind.
    match value:
        case {"is": name, **fields}:
            return _classes_with(name)[name](**{str(key): _decoded(one, nodes) for key, one in fields.items()})
        case {"node": number}:
            # The node was decoded before, since nodes follow their inputs.
            return nodes[number]
        case {"operation": name}:
            return VOCABULARY[name]
        case {"float": text}:
            return float(text)
        case {"function": name}:
            return _Elsewhere(name)
        case {"entries": entries}:
            return {key: _decoded(entry, nodes) for key, entry in entries}
    raise ValueError(f"{sorted(value)} is no part of a plan")


def _classes_with(name: str) -> Mapping[str, type]:
    """The classes of a plan by name, including the class ``name`` if its module was imported since the last call."""
    # The module of the class may have been imported since the last call.
    if name not in _classes():
        _classes.cache_clear()
    return _classes()


@functools.cache  # a call needs milliseconds, and a plan has hundreds of records
def _classes() -> Mapping[str, type]:
    """The dataclasses that occur in a plan, by name: those of signals, of rules and actions, and of the plan itself."""
    packages = ("kungfu.signal", "kungfu.control", "kungfu.compiler.compiled_policies")
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(packages)]
    found = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    return {one.__name__: one for one in found if dataclasses.is_dataclass(one)}


# ---- an outline, to compare plans ------------------------------------------------------------------------------------


def outline(plan: CompiledPolicies) -> Iterator[tuple[str, str]]:
    """Yields the parts of a plan, each as a label for people and a text for the comparison: the nodes, after their
    inputs; then the rules; and last, with an empty label, the order of computations and messages."""
    # A node's text is a digest of its fields with the texts of its inputs: a Merkle tree over the graph.
    numbers, labels, owners = node_numbers(plan), labels_of(plan), _owners(plan)
    texts: dict[int, str] = {}
    for node, number in numbers.items():
        texts[number] = _text(record_to_json(node, numbers), texts)
        if node in labels and not is_plain(node):  # the text of a node covers its leaves and the inside of a fold
            yield _node(node, labels, owners), texts[number]
    for rule in (*plan.rules, *plan.on_rescale):
        looks = "on a rescale" if rule.trigger.event == "rescale" else steps((rule.gate,), labels)
        shown = f"rule {rule.name}: {does(rule.action, labels)}, {looks}, where {labels[rule.fires]}"
        yield shown, _text(record_to_json(rule, numbers), texts)
    yield "", _text(record_to_json(plan, numbers), texts)


def _text(fields: Any, texts: Mapping[int, str]) -> str:
    content = msgspec.json.encode(_resolved(fields, texts), order="sorted")
    return blake2b(content, digest_size=16).hexdigest()


def _resolved(value: Any, texts: Mapping[int, str]) -> Any:
    """A JSON value with each node's number replaced by the node's text, which is independent of the numbering."""
    match value:
        case {"node": number}:
            return texts[number]
        case dict():
            return {name: _resolved(one, texts) for name, one in value.items() if name != "origin"}
        case list():
            return [_resolved(one, texts) for one in value]
    return value


def _owners(plan: CompiledPolicies) -> dict[Signal, str]:
    """For each node, the name of the first rule that needs the node."""
    owners: dict[Signal, str] = {}
    for rule in (*plan.rules, *plan.on_rescale):
        for node in topological(rule.roots):
            owners.setdefault(node, rule.name)
    return owners


def _node(node: Signal, labels: Labels, owners: Mapping[Signal, str]) -> str:
    label, shown = labels[node], made(node, labels)
    shown = shown if label.startswith("%") else f"{label} = {shown}"
    if isinstance(node, Fold):
        shown += _inside(node)
    rule = f" in rule {owners[node]}" if node in owners else ""
    return f"{shown}{rule}{where(node.origin)[1:]}"


def _inside(fold: Fold) -> str:
    """The start values and the constants of a fold, as text, since the fold's label does not show these."""
    inner = topological((*fold.recurrence.updates, fold.recurrence.output))
    numbers = dict.fromkeys(repr(one.value) for one in inner if isinstance(one, Constant))
    start = ", ".join(map(repr, fold.recurrence.init))
    return f" (from {start}; with {', '.join(numbers) or 'no numbers'})"
