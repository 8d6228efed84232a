"""Reads and overwrites the memory of variables while the graph is not running.

Only this module of the package depends on TensorFlow; the others handle only memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from kungfu.native import load
from kungfu.runtime.state.buffers import Buffers


def memory_of(variables: Sequence[tf.Variable]) -> Buffers:
    """The memory of variables, for reading: on the CPU, their own buffers; on other devices, a copy.

    A value assigned to a variable while the buffers are held goes to new memory, so the buffers never change.
    """
    # All variables are on the CPU.
    if not _elsewhere(variables):
        return _own_memory(variables, use="read")
    with tf.device("/CPU:0"):
        return Buffers.of([np.ascontiguousarray(variable.numpy()) for variable in variables])


@contextmanager
def writable_memory_of(variables: Sequence[tf.Variable]) -> Iterator[Buffers]:
    """The memory of variables, for writing; at the end of the block the variables have the written values.

    On the CPU, this is the variables' own memory; a variable that shares it with a tensor first gets a new buffer.
    """
    # All variables are on the CPU.
    if not _elsewhere(variables):
        yield _own_memory(variables, use="overwrite")
        return
    with tf.device("/CPU:0"):
        arrays = [np.array(variable.numpy(), order="C") for variable in variables]
    yield Buffers.of(arrays)
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _elsewhere(variables: Sequence[tf.Variable]) -> bool:
    return any("CPU:0" not in variable.device for variable in variables)


def _own_memory(variables: Sequence[tf.Variable], *, use: Literal["read", "overwrite"]) -> Buffers:
    if not variables:
        return Buffers.of([])
    found: Any = load().ops.kungfu_buffers(
        [variable.handle for variable in variables], Ts=[variable.dtype for variable in variables], use=use
    )
    return Buffers(found.table.numpy(), found.values)
