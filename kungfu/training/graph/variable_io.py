"""Reads and writes of variables from outside of the graph, also of those that a traced function touches.

A variable's own ``assign`` and ``numpy`` take three times as long as the op that they come to, and at a barrier all
peers wait for some thirty of them. Of the variables of a graph the handles are known: a graph lists the variables whose
values were read, and misses one that is only assigned to; the handles that it captures are all there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from kungfu.framework_internals import handle_shape_and_type


def read_variable(variable: tf.Variable) -> Any:
    """The value of a variable, as numpy has it."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).numpy()


def write_variable(variable: tf.Variable, value: Any) -> None:
    """Assigns a value of the variable's own shape."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.constant(value, variable.dtype))


def is_variable(tensor: Any) -> bool:
    """True if a tensor that a graph captures is the handle of a variable, and not of a table or a summary writer.

    >>> is_variable(tf.Variable(1).handle), is_variable(tf.constant(1))
    (True, False)
    """
    return tensor.dtype == tf.resource and handle_shape_and_type(tensor) is not None


def read_handles(handles: Iterable[Any]) -> list[Any]:
    """Host: what the variables hold. Nothing is copied: a variable's next write goes to other memory."""
    return [tf.raw_ops.ReadVariableOp(resource=one, dtype=dtype_of(one)) for one in handles]


def write_handles(handles: Iterable[Any], values: Iterable[Any]) -> None:
    """Host: gives the variables values that were read of them."""
    for handle, value in zip(handles, values, strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def call_on_host(function: Callable[[], Any], handles: Iterable[Any], gives: Any) -> Any:
    """Graph, in a branch of a condition: a call of Python that may read and write the variables with these handles.

    It runs after what the step did to them before the condition, before what it does afterwards, and alone.

    Args:
        function: The function that is called.
        handles: The handles of the variables.
        gives: The dtype of what it returns; an empty list for nothing.
    """
    # An op that is given a handle has to be on the device of the variable: beside a GPU, which keeps weights and leaves
    # other variables to the CPU, no device is right for this call, and TensorFlow refuses to place the graph. So the
    # call is given none. The condition is an op of its own that is placed nowhere, and its branch takes the handles in:
    # as they are given to something there that TensorFlow does not know to be a read, it orders the condition among
    # the other ops as a write of all of them. The edges of that order may run between devices, unlike a handle's.
    if not tf.executing_eagerly():  # op by op, in the program's order
        for handle in handles:
            tf.identity(handle)
    with tf.device("/CPU:0"):
        return tf.py_function(lambda: function(), [], gives)


def call_on_host_where(condition: Any, function: Callable[[], None], handles: Iterable[Any]) -> None:
    """Graph: a call of Python as `call_on_host` makes it, in the steps in which the condition holds."""

    def call() -> Any:
        done = call_on_host(function, handles, [])
        with tf.control_dependencies([] if done is None else [done]):
            return tf.constant(True)

    tf.cond(condition, call, lambda: tf.constant(False))


def dtype_of(handle: Any) -> Any:
    """The dtype of a variable, by its handle."""
    return tf.as_dtype(_shape_and_type(handle).dtype)


def shape_of(handle: Any) -> Any:
    """The declared shape of a variable, by its handle."""
    return tf.TensorShape(_shape_and_type(handle).shape)


def _shape_and_type(handle: Any) -> Any:
    found = handle_shape_and_type(handle)
    assert found is not None, handle
    return found
