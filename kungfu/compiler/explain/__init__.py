"""Explanations of a plan: for people as text and as a graph, for programs as JSON values."""

from kungfu.compiler.explain.explanation import explain, explain_json
from kungfu.compiler.explain.graph import GraphKind, GraphNode, graph_of

__all__ = ["GraphKind", "GraphNode", "explain", "explain_json", "graph_of"]
