"""A plan without TensorFlow, for a whole cluster at once: what replays and models run on, and the oracle in NumPy."""

from kungfu.compiler.replay.numpy_backend import NumpyBackend
from kungfu.compiler.replay.replay import Replay

__all__ = ["NumpyBackend", "Replay"]
