"""The outline of a plan: each part with a label and a text, for a comparison with the plan of another peer.

A node's text is its expression down to the sources, so two plans share a node exactly if both compute the same. Line
numbers and variable names of the program make no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from kungfu.compiler.compiled_policies import CompiledPolicies
from kungfu.compiler.explain.labels import Labels, does, is_plain, labels_of, made, steps, where
from kungfu.compiler.serialize import node_numbers, record_to_json
from kungfu.signal import Constant, Fold, Signal, topological


def outline(plan: CompiledPolicies) -> Iterator[tuple[str, str]]:
    """The parts of a plan, each with a label for people and a text for the comparison: nodes after their inputs, then
    the rules, then, without a label, the order of computation and messages."""
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
    """The value with its nodes replaced by their texts, which do not depend on positions in the plan."""
    match value:
        case {"node": number}:
            return texts[number]
        case dict():
            return {name: _resolved(one, texts) for name, one in value.items() if name != "origin"}
        case list():
            return [_resolved(one, texts) for one in value]
    return value


def _owners(plan: CompiledPolicies) -> dict[Signal, str]:
    """The first rule that needs a node, by node."""
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
    """The numbers in the update of a fold, which its label does not show."""
    inner = topological((*fold.recurrence.updates, fold.recurrence.output))
    numbers = dict.fromkeys(repr(one.value) for one in inner if isinstance(one, Constant))
    start = ", ".join(map(repr, fold.recurrence.init))
    return f" (from {start}; with {', '.join(numbers) or 'no numbers'})"
