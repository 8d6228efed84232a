"""Explain: a plan for people, as text and as a graph, and for programs, as values that JSON knows."""

from kungfu.compiler.explain.document import explain_json
from kungfu.compiler.explain.graph import GraphKind, GraphNode, PlanGraph, graph_of
from kungfu.compiler.explain.text import explain

__all__ = ["GraphKind", "GraphNode", "PlanGraph", "explain", "explain_json", "graph_of"]
