"""Evaluation of a plan without TensorFlow, of a whole cluster, for replays and models, and the NumPy oracle."""

from kungfu.compiler.replay.numpy_backend import NumpyBackend
from kungfu.compiler.replay.replay import Replay

__all__ = ["NumpyBackend", "Replay"]
