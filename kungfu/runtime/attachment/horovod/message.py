"""The all-reduce in the graph, on Horovod's ops.

To TensorFlow, Horovod's ops are stateless: TensorFlow may fold an op with a constant input, merge two ops that look the
same, and run the ops in any order. So every message carries a token: an additional element, read from the variable that
orders a step, between two writes to that variable. Tensors of one dtype travel as one flat message. The message with
the policy's extra values is sent last, and no sum is returned before all messages have arrived.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kungfu.runtime.attachment.horovod import engine
from kungfu.runtime.attachment.protocol import check_tensors

_WIRE = {tf.bfloat16: tf.float32}  # Horovod has no bfloat16; the sum in float32 is more accurate


class EngineState:
    """The attachment's int64 variables on the CPU: the number of peers, and a counter that is odd during a message."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            self.size, self.message_count = (
                tf.Variable(value, dtype=tf.int64, trainable=False, name=f"kungfu_horovod_{name}")
                for name, value in (("size", 1), ("message_count", 0))
            )


def all_reduce(values: Sequence[Any], *, prescale: Any, order: Any, state: EngineState, tag: str) -> list[Any]:
    """The sum over peers of every tensor of ``values``; the prescaled tensor itself if ``state.size`` is 1.

    The arguments and errors are as in ``HorovodAttachment.all_reduce``; ``state`` contains the size of the view.
    """
    scale = tf.cast(tf.convert_to_tensor(prescale, dtype_hint=tf.float64), tf.float64)
    tensors = [tf.convert_to_tensor(value) for value in values]
    check_tensors(tensors)
    tensors[:-1] = [_times(tensor, scale=scale) for tensor in tensors[:-1]]
    order.assign_add(1, read_value=False)
    token = order.read_value()
    with tf.control_dependencies([token]):  # the barrier, which may change the view, runs before or after this message
        together = state.size.read_value() > 1
        state.message_count.assign(2 * tf.cast(token, tf.int64) + 1, read_value=False)
    sums = tf.cond(together, lambda: _messages(tensors, token=token, tag=tag), lambda: _copies(tensors))
    with tf.control_dependencies(sums):
        state.message_count.assign(2 * tf.cast(token, tf.int64) + 2, read_value=False)
        order.assign_add(1, read_value=False)
        return _copies(sums)


def _times(tensor: Any, *, scale: Any) -> Any:
    if not tensor.dtype.is_floating:
        return tensor
    exact = tf.float64 if tensor.dtype == tf.float64 else tf.float32  # half precision: float32, rounded once
    # 0 * NaN is 0 for this op: a peer without samples contributes zeros even if its gradients are NaN.
    scaled = tf.math.multiply_no_nan(tf.cast(tensor, exact), tf.cast(scale, exact))
    return tf.cast(scaled, tensor.dtype)


def _messages(tensors: list[Any], *, token: Any, tag: str) -> list[Any]:
    last_index = {tensor.dtype: index for index, tensor in enumerate(tensors)}
    sums: dict[int, Any] = {}
    for dtype in sorted(last_index, key=last_index.__getitem__):
        indices = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        sums |= zip(indices, _one_message([tensors[i] for i in indices], token=token, tag=tag), strict=True)
    return [sums[index] for index in range(len(tensors))]


def _one_message(tensors: list[Any], *, token: Any, tag: str) -> list[Any]:
    dtype = tensors[0].dtype
    wire = _WIRE.get(dtype, dtype)
    flat = [tf.reshape(tf.cast(tensor, wire), [-1]) for tensor in tensors]
    packed = tf.concat([*flat, tf.reshape(tf.cast(token, wire), [1])], axis=0)
    name = re.sub(r"[^A-Za-z0-9_]", "_", f"kungfu_{tag}_{dtype.name}")
    # The name scope differs between a graph and its inlined copy; the tag alone is the same on all peers.
    total = engine.load()._allreduce(packed, name=name, ignore_name_scope=True)
    parts = tf.split(total, [*(_count(part) for part in flat), 1], axis=0)[:-1]
    shaped = [tf.reshape(tf.cast(part, dtype), tf.shape(like)) for part, like in zip(parts, tensors, strict=True)]
    return [tf.ensure_shape(one, like.shape) for one, like in zip(shaped, tensors, strict=True)]


def _count(flat: Any) -> Any:
    return flat.shape[0] if flat.shape[0] is not None else tf.size(flat)


def _copies(tensors: Sequence[Any]) -> list[Any]:
    return [tf.identity(tensor) for tensor in tensors]
