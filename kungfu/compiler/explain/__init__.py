"""Explanations of a plan: a summary for people, the whole plan as text and as a graph, and JSON values for programs."""

from kungfu.compiler.explain.explanation import explain, explain_json
from kungfu.compiler.explain.graph import GraphKind, GraphNode, graph_of
from kungfu.compiler.explain.summary import summarize

__all__ = ["GraphKind", "GraphNode", "explain", "explain_json", "graph_of", "summarize"]
