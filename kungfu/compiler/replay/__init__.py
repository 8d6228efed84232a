"""The plan in NumPy, for a whole cluster at once: the oracle of the TensorFlow program, and what models run on."""

from kungfu.compiler.replay.numpy_backend import NumpyBackend
from kungfu.compiler.replay.replay import Replay

__all__ = ["NumpyBackend", "Replay"]
