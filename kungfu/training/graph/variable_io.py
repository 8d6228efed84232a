"""Reads and writes variables from outside the graph, including variables that a traced function uses.

A variable's ``assign`` and ``numpy`` take three times as long as the underlying ops, and at a barrier all peers wait
for about thirty such calls. Variables of a graph are addressed by the handles that the graph captures. The graph's list
of variables is incomplete: it contains the variables that are read, but not a variable that is only assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from kungfu.framework_internals import handle_shape_and_type


def read_variable(variable: tf.Variable) -> Any:
    """The value of a variable as a NumPy array."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).numpy()


def write_variable(variable: tf.Variable, value: Any) -> None:
    """Assigns a value of the variable's shape."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.constant(value, variable.dtype))


def is_variable(tensor: Any) -> bool:
    """True if a tensor captured by a graph is the handle of a variable, not of a table or a summary writer.

    >>> is_variable(tf.Variable(1).handle), is_variable(tf.constant(1))
    (True, False)
    """
    return tensor.dtype == tf.resource and handle_shape_and_type(tensor) is not None


def read_handles(handles: Iterable[Any]) -> list[Any]:
    """Host: the values of the variables with these handles, without a copy: the next write uses other memory."""
    return [tf.raw_ops.ReadVariableOp(resource=one, dtype=dtype_of(one)) for one in handles]


def write_handles(handles: Iterable[Any], values: Iterable[Any]) -> None:
    """Host: assigns values to the variables with these handles."""
    for handle, value in zip(handles, values, strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def run_where(condition: Any, act: Callable[[], object]) -> Any:
    """Graph: makes the assignments of ``act`` in the steps in which the condition is True; returns the op."""

    def run() -> Any:
        act()
        return tf.constant(True)

    return tf.cond(condition, run, lambda: tf.constant(False))


def call_on_host(function: Callable[[], Any], handles: Iterable[Any], gives: Any) -> Any:
    """Graph, in a branch of a condition: a call into Python that may read and write the variables with these handles.

    The call runs after the step's earlier writes to these variables, before its later writes, and while no op runs.

    Args:
        function: The function that is called.
        handles: The handles of the variables.
        gives: The dtype of the function's result; an empty list for no result.
    """
    # An op with a handle as input must be on the variable's device. With a GPU, which holds weights but leaves other
    # variables to the CPU, no device suits this call, and TensorFlow refuses to place the graph. So the call has no
    # handles as inputs. The enclosing condition is an op without a placement, and its branch captures the handles. In
    # the branch they are inputs of an op that TensorFlow does not know as a read, so TensorFlow orders the condition
    # among the other ops like a write of all variables. Unlike a handle, these control edges may cross devices.
    if not tf.executing_eagerly():  # eager ops already run in the program's order
        for handle in handles:
            tf.identity(handle)
    with tf.device("/CPU:0"):
        return tf.py_function(lambda: function(), [], gives)


def call_on_host_where(condition: Any, function: Callable[[], None], handles: Iterable[Any]) -> None:
    """Graph: calls into Python like `call_on_host`, in the steps in which the condition is True."""
    run_where(condition, lambda: call_on_host(function, handles, []))


def dtype_of(handle: Any) -> Any:
    """The dtype of the variable with this handle."""
    return tf.as_dtype(_shape_and_type(handle).dtype)


def shape_of(handle: Any) -> Any:
    """The declared shape of the variable with this handle."""
    return tf.TensorShape(_shape_and_type(handle).shape)


def _shape_and_type(handle: Any) -> Any:
    found = handle_shape_and_type(handle)
    assert found is not None, handle
    return found
