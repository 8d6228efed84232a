"""``attach``, and the `Training` that it returns: the compiled step, and its calls in a loop."""

from kungfu.training.loop.attach import attach
from kungfu.training.loop.training import Training

__all__ = ["Training", "attach"]
