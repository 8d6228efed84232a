"""The layout of a plan's graph: nodes in columns, from the sources of a step to the rules."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from kungfu.compiler import Plan, explain
from kungfu.compiler.explain import GraphNode, graph_of

_SWEEPS = 4


def draw_plan(plan: Plan) -> dict[str, Any]:
    """The plan as an object: nodes with column and row, edges as pairs of places, and the text of ``kungfu explain``.

    A node stands in the column after the last of its inputs, rules in the last one. Rows are ordered so that few edges
    cross: each node goes to the mean row of its neighbours, in some sweeps forth and back (Sugiyama et al., 1981).
    """
    nodes = graph_of(plan)
    columns = _columns(nodes)
    rows = _rows(nodes, columns)
    placed = [
        {"label": one.label, "kind": one.kind, "how": one.how, "placement": one.placement, "unit": one.unit,
         "column": columns[place], "row": rows[place]} for place, one in enumerate(nodes)
    ]  # fmt: skip
    edges = [[one, place] for place, node in enumerate(nodes) for one in node.inputs]
    return {"nodes": placed, "edges": edges, "text": explain(plan)}


def _columns(nodes: Sequence[GraphNode]) -> list[int]:
    columns: list[int] = []
    for one in nodes:
        columns.append(1 + max((columns[at] for at in one.inputs), default=-1))
    last = max(columns, default=0)
    return [last if one.kind == "rule" else column for one, column in zip(nodes, columns, strict=True)]


def _rows(nodes: Sequence[GraphNode], columns: Sequence[int]) -> list[int]:
    members = [
        [place for place, at in enumerate(columns) if at == column] for column in range(max(columns, default=-1) + 1)
    ]
    rows = [0] * len(nodes)
    for column in members:
        for row, place in enumerate(column):
            rows[place] = row
    followers: list[list[int]] = [[] for _ in nodes]
    for place, one in enumerate(nodes):
        for at in one.inputs:
            followers[at].append(place)
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        for column in members if forth else reversed(members):
            near = {place: nodes[place].inputs if forth else followers[place] for place in column}
            means = {place: statistics.fmean(rows[at] for at in near[place]) if near[place] else rows[place]
                     for place in column}  # fmt: skip
            column.sort(key=lambda place: (means[place], rows[place]))
            for row, place in enumerate(column):
                rows[place] = row
    return rows
