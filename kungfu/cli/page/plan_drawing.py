"""The layout of a plan's graph in columns: nodes without inputs in the first column, rules in the last."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kungfu.compiler import CompiledPolicies, explain
from kungfu.compiler.explain import GraphNode, graph_of

_SWEEPS = 4


def draw_plan(plan: CompiledPolicies) -> dict[str, Any]:
    """A plan as an object: nodes with column and row, edges as pairs of indices, its text by ``kungfu explain --ir``.

    A node is in the column after its last input; rules are in the last column. Rows are ordered so that few edges
    cross: several sweeps in both directions move each node to the mean row of its neighbours.

    Reference:
        Sugiyama et al., 1981.
    """
    nodes = graph_of(plan)
    columns = _columns(nodes)
    rows = _rows(nodes, columns)
    placed = [
        {**asdict(one), "column": column, "row": row} for one, column, row in zip(nodes, columns, rows, strict=True)
    ]
    edges = [[one, index] for index, node in enumerate(nodes) for one in node.inputs]
    return {"nodes": placed, "edges": edges, "text": explain(plan)}


def _columns(nodes: Sequence[GraphNode]) -> list[int]:
    columns: list[int] = []
    for one in nodes:
        columns.append(1 + max((columns[at] for at in one.inputs), default=-1))
    last = max(columns, default=0)
    return [last if one.kind == "rule" else column for one, column in zip(nodes, columns, strict=True)]


def _rows(nodes: Sequence[GraphNode], columns: Sequence[int]) -> list[int]:
    members = [
        [index for index, at in enumerate(columns) if at == column] for column in range(max(columns, default=-1) + 1)
    ]
    rows = [0] * len(nodes)
    for column in members:
        for row, index in enumerate(column):
            rows[index] = row
    followers: list[list[int]] = [[] for _ in nodes]
    for index, one in enumerate(nodes):
        for at in one.inputs:
            followers[at].append(index)
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        for column in members if forth else reversed(members):
            near = {index: nodes[index].inputs if forth else followers[index] for index in column}
            means = {index: statistics.fmean(rows[at] for at in near[index]) if near[index] else rows[index]
                     for index in column}  # fmt: skip
            column.sort(key=lambda index: (means[index], rows[index]))
            for row, index in enumerate(column):
                rows[index] = row
    return rows
