"""The memory of variables, for the runtime to read and overwrite while the graph stands still.

The other modules of this package know memory only: TensorFlow ends at this wall.
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
    """The memory of variables, to be read: their own buffers on the CPU, a copy of those on another device.

    What is assigned to a variable while the buffers are held goes to new memory, so they never change.
    """
    # All are on the CPU.
    if not _elsewhere(variables):
        return _own_memory(variables, use="read")
    with tf.device("/CPU:0"):
        return Buffers.of([np.ascontiguousarray(variable.numpy()) for variable in variables])


@contextmanager
def writable_memory_of(variables: Sequence[tf.Variable]) -> Iterator[Buffers]:
    """The memory of variables, to be written into; at the end of the block they have what was written, where it was.

    On the CPU that is their own memory; a buffer that a variable shares with another tensor is left to that one first.
    """
    # All are on the CPU.
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
