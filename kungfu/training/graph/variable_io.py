"""kungfu's own variables from outside of the graph.

A variable's own ``assign`` and ``numpy`` take three times as long as the op that they come to, and at a barrier all
peers wait for some thirty of them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def read_variable(variable: tf.Variable) -> Any:
    """The value of a variable, as numpy has it."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).numpy()


def write_variable(variable: tf.Variable, value: Any) -> None:
    """Assigns a value of the variable's own shape."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.constant(value, variable.dtype))
