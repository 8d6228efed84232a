"""A plan as two listings for one native op each: its dozens of scalars cost a step next to nothing."""

from kungfu.compiler.fused.program import fused

__all__ = ["fused"]
