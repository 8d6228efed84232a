"""Explanations of a plan: for people as text and as a graph, for programs as JSON values."""

from kungfu.compiler.explain.document import explain_json
from kungfu.compiler.explain.graph import GraphKind, GraphNode, graph_of
from kungfu.compiler.explain.text import explain

__all__ = ["GraphKind", "GraphNode", "explain", "explain_json", "graph_of"]
