"""The passes of the compiler: pure functions over one immutable graph, which can be tested separately."""

from kungfu.compiler.passes.check import check
from kungfu.compiler.passes.schedule import schedule
from kungfu.compiler.passes.simplify import simplify

__all__ = ["check", "schedule", "simplify"]
