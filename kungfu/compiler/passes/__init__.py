"""The passes of the compiler: pure functions over an immutable graph. Each pass can be tested separately."""

from kungfu.compiler.passes.check import check
from kungfu.compiler.passes.schedule import schedule
from kungfu.compiler.passes.simplify import simplify

__all__ = ["check", "schedule", "simplify"]
