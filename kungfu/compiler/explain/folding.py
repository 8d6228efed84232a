"""Folding: which nodes a reader need not see, since a monitor that has a line of its own is made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kungfu.compiler.explain.labels import is_plain, roots_of
from kungfu.compiler.plan import Plan
from kungfu.signal import Signal, topological

__all__ = ["Folding", "Monitors", "folding_of"]

Monitors = Literal["folded", "open"]


@dataclass(frozen=True)
class Folding:
    """The `hidden` nodes, and under each monitor that is shown those of them that it is made of."""

    hidden: frozenset[Signal] = frozenset()
    under: Mapping[Signal, frozenset[Signal]] = field(default_factory=dict)


def folding_of(plan: Plan, *, monitors: Monitors) -> Folding:
    """What a text of the plan leaves out: with monitors "folded" what only they are made of, else nothing.

    What the policy uses besides, by another way than through the monitor, is shown.
    """
    if monitors == "open":
        return Folding()
    nodes = topological((*plan.nodes, *_roots(plan)))
    inside = {node: _below(node) for node in nodes if node.monitor}
    within = {one for below in inside.values() for one in below}
    shown = {node for node in nodes if node not in within} | (set(_roots(plan)) & within)
    # What a line that is shown names has a line itself, unless that line is a monitor's.
    while more := {one for node in shown if not node.monitor for one in node.inputs if one not in shown}:
        shown |= more
    hidden = frozenset(one for one in within - shown if not is_plain(one))
    return Folding(hidden, {node: hidden & below for node, below in inside.items() if node in shown})


def _roots(plan: Plan) -> Iterator[Signal]:
    for rule in (*plan.rules, *plan.on_rescale):
        yield from roots_of(rule)
    yield from plan.watched_signals.values()


def _below(node: Signal) -> frozenset[Signal]:
    return frozenset(topological(node.inputs))
