"""Explain: a plan for people, as text and as a graph, and for programs, as values that JSON knows."""

from kungfu.compiler.explain.document import explain_json
from kungfu.compiler.explain.graph import GraphKind, GraphNode, graph_of
from kungfu.compiler.explain.text import explain

__all__ = ["GraphKind", "GraphNode", "explain", "explain_json", "graph_of"]
