"""The all-reduce in the graph, on Horovod's ops.

Horovod's ops have no state and take no resource handle, as TensorFlow sees them: it may fold one whose input is a
constant, merge two that look the same, and run them in any order. So every message carries a token, one more element
that is read from the variable that orders a step, and lies between two writes to that variable. Tensors of one dtype
travel as one flat message; the one that holds the policy's extra values goes last, and no sum is handed on before all
messages have arrived.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.attachment.horovod import engine

__all__ = ["Plug", "all_reduce"]

_WIRE = {tf.bfloat16: tf.float32}  # Horovod has no bfloat16; as float32 the sum is only better
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


@dataclass(frozen=True)
class Plug:
    """The attachment's own two int64 variables on the CPU: ``size`` in peers, and ``pulse``, odd during a message."""

    size: Any
    pulse: Any


def all_reduce(values: Sequence[Any], *, prescale: Any, order: Any, plug: Plug, tag: str) -> list[Any]:
    """The sum over peers of every tensor of ``values``; the identity, prescaled, where the plug's size is 1."""
    scale = tf.cast(tf.convert_to_tensor(prescale, dtype_hint=tf.float64), tf.float64)
    tensors = _scaled([tf.convert_to_tensor(value) for value in values], prescale=scale)
    order.assign_add(1, read_value=False)
    token = order.read_value()
    with tf.control_dependencies([token]):  # the barrier, which may swap us, comes before or after, never in between
        together = plug.size.read_value() > 1
        plug.pulse.assign(2 * tf.cast(token, tf.int64) + 1, read_value=False)
    sums = tf.cond(together, lambda: _messages(tensors, token=token, tag=tag), lambda: _copies(tensors))
    with tf.control_dependencies(sums):
        plug.pulse.assign(2 * tf.cast(token, tf.int64) + 2, read_value=False)
        order.assign_add(1, read_value=False)
        return _copies(sums)


def _scaled(tensors: list[Any], *, prescale: Any) -> list[Any]:
    _check(tensors)
    return [_times(tensor, scale=prescale) for tensor in tensors[:-1]] + tensors[-1:]


def _times(tensor: Any, *, scale: Any) -> Any:
    if not tensor.dtype.is_floating:
        return tensor
    exact = tf.float64 if tensor.dtype == tf.float64 else tf.float32  # halves are multiplied wider, and rounded once
    # 0 * NaN is 0 for this op: a peer without samples contributes nothing, whatever its gradients are.
    scaled = tf.math.multiply_no_nan(tf.cast(tensor, exact), tf.cast(scale, exact))
    return tf.cast(scaled, tensor.dtype)


def _messages(tensors: list[Any], *, token: Any, tag: str) -> list[Any]:
    last_place = {tensor.dtype: place for place, tensor in enumerate(tensors)}
    sums: dict[int, Any] = {}
    for dtype in sorted(last_place, key=last_place.__getitem__):
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        sums |= zip(places, _one_message([tensors[p] for p in places], token=token, tag=tag), strict=True)
    return [sums[place] for place in range(len(tensors))]


def _one_message(tensors: list[Any], *, token: Any, tag: str) -> list[Any]:
    dtype = tensors[0].dtype
    wire = _WIRE.get(dtype, dtype)
    flat = [tf.reshape(tf.cast(tensor, wire), [-1]) for tensor in tensors]
    packed = tf.concat([*flat, tf.reshape(tf.cast(token, wire), [1])], axis=0)
    name = re.sub(r"[^A-Za-z0-9_]", "_", f"kungfu_{tag}_{dtype.name}")
    # The scope differs between a graph and its inlined copy; the tag alone is the same on all peers.
    total = engine.load()._allreduce(packed, name=name, ignore_name_scope=True)
    parts = tf.split(total, [*(_count(part) for part in flat), 1], axis=0)[:-1]
    return [_shaped(tf.cast(part, dtype), like=tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _count(flat: Any) -> Any:
    return flat.shape[0] if flat.shape[0] is not None else tf.size(flat)


def _shaped(flat: Any, *, like: Any) -> Any:
    return tf.ensure_shape(tf.reshape(flat, tf.shape(like)), like.shape)


def _copies(tensors: Sequence[Any]) -> list[Any]:
    return [tf.identity(tensor) for tensor in tensors]


def _check(tensors: Sequence[Any]) -> None:
    if not tensors:
        raise UsageError("all_reduce needs at least one tensor, and was given none")
    wrong = sorted({tensor.dtype.name for tensor in tensors if tensor.dtype not in _DTYPES})
    if wrong:
        allowed = ", ".join(dtype.name for dtype in _DTYPES)
        raise UsageError(f"all_reduce was given tensors of {', '.join(wrong)}; allowed are {allowed}: cast them first")
