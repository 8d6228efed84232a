"""Explain: a plan for people, as text, and for programs, as values that JSON knows."""

from kungfu.compiler.explain.document import explain_json
from kungfu.compiler.explain.text import explain

__all__ = ["explain", "explain_json"]
