"""What XLA would have to compile, and cannot: the message of a step, and the barrier behind it."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from kungfu.errors import UsageError

__all__ = ["refuse_xla"]


def refuse_xla(what: str) -> None:
    """Raises ``UsageError`` where ``what`` is being traced into a function that XLA compiles as a whole."""
    if tf.executing_eagerly() or not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return
    raise UsageError(
        f"{what} was called inside a tf.function(jit_compile=True): XLA compiles such a function as a whole, and can "
        "compile neither the message that averages gradients nor a barrier; put jit_compile=True on a function of its "
        "own that computes loss and gradients, and call that one in the step, before training.average()"
    )
