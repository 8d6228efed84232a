"""``attach``: the compiled step and its life in a loop."""

from kungfu.training.attach import attach
from kungfu.training.training import Training

__all__ = ["Training", "attach"]
