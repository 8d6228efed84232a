"""The explanation of a plan for programs: the content of the text as JSON values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from kungfu.compiler.compiled_policies import CompiledPolicies, MessageLayout, Segment
from kungfu.compiler.explain.grouping import shared_parts
from kungfu.compiler.explain.labels import Labels, does, is_plain, labels_of, made
from kungfu.compiler.explain.text import MEASURED_BY, costs_of
from kungfu.compiler.explain.units import units_of
from kungfu.control import Rule
from kungfu.signal import Constant, Signal
from kungfu.slowness import SLOW


def explain_json(plan: CompiledPolicies) -> dict[str, Any]:
    """The plan as a document for programs.

    Returns:
        An object with the keys `rules`, `shared`, `leave_first`, `reads`, `nodes`, `before`, `rides`, `after` and
        `costs`. Nodes are identified by the labels of the text; `before` and `after` are the segments in
        order, each with its gates, its nodes and the contents of its message. `leave_first` names the peers that leave
        before the newest ones when the job shrinks: the peers with a speed `below` a fraction of the median's,
        `measured_by` a monitor; `null` if no policy measures speeds.

    >>> from kungfu.compiler import compile_policies
    >>> from kungfu.policies import gns_batch
    >>> explain_json(compile_policies([gns_batch(max_peers=8)]))["costs"]["messages_per_step"]
    0
    """
    labels = labels_of(plan)
    return {
        "rules": [_rule(one, labels) for one in (*plan.rules, *plan.on_rescale)],
        "shared": [{"by": list(by), "nodes": _names(nodes, labels)} for by, nodes in shared_parts(plan).items()],
        "leave_first": None if plan.straggler_fractions is None else {"below": SLOW, "measured_by": MEASURED_BY},
        "reads": {
            name: {"placement": kind.placement, "type": str(kind.type), "unit": kind.unit, "meaning": kind.meaning}
            for name, kind in plan.source_kinds.items()
        },
        "nodes": list(_nodes(labels)),
        "before": [_segment(one, labels) for one in plan.before],
        "rides": _names(plan.piggybacked.collectives, labels),
        "after": [_segment(one, labels) for one in plan.after],
        "costs": costs_of(plan),
    }


def _rule(rule: Rule, labels: Labels) -> dict[str, Any]:
    return {
        "name": rule.name,
        "occasion": rule.trigger.event,
        "standing": rule.mode,
        "gates": _gates((rule.gate,), labels),
        "fires": labels[rule.fires],
        "does": does(rule.action, labels),
        "budgets": {owner: dataclasses.asdict(one) for owner, one in rule.budgets.items()},
        "logs": {name: labels[one] for name, one in rule.inputs.items()},
        "origin": rule.origin,
    }


def _nodes(labels: Labels) -> Iterator[dict[str, str]]:
    units = units_of(labels)
    for node, label in labels.items():
        if not is_plain(node):
            yield {
                "label": label,
                "made": made(node, labels),
                "placement": node.placement,
                "type": str(node.type),
                "unit": units[node],
                "origin": node.origin,
                "monitor": node.monitor,
            }


def _segment(segment: Segment, labels: Labels) -> dict[str, Any]:
    nodes = [one for one in segment.nodes if not is_plain(one)]
    message = segment.message or MessageLayout()
    return {
        "gates": _gates(segment.gates, labels),
        "nodes": _names(nodes, labels),
        "message": _names(message.collectives, labels),
    }


def _gates(gates: Iterable[Signal], labels: Labels) -> list[str]:
    return [labels[one] for one in gates if not isinstance(one, Constant)]


def _names(nodes: Iterable[Signal], labels: Labels) -> list[str]:
    return [labels[one] for one in nodes]
