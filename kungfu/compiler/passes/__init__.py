"""The passes of the compiler: each a pure function over one immutable graph, each testable alone."""

from kungfu.compiler.passes.check import check
from kungfu.compiler.passes.schedule import schedule
from kungfu.compiler.passes.simplify import simplify

__all__ = ["check", "schedule", "simplify"]
