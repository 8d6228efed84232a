"""Registered values between two steps: compared, given to those who are new, averaged.

A barrier lies inside a step, and what a program does behind that step is not done yet: a counter that it counts up
there is one behind, on all peers but on a joiner, whose step was none. So registered values meet where every program
is at the same place: before the next step.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.keeping.hooks import Rescaled
from kungfu.training.keeping.registry import Registry

__all__ = ["Due", "Together", "exchange"]


@dataclass(frozen=True)
class Due:
    """What a barrier has left to do before the next step.

    In a new view the shared values are those of rank ``source``; a peer that ``takes`` them may have held others. The
    averaged ones are the mean over the ranks ``holders``, who held the state when the view began; ``None`` is all.
    """

    source: int | None = None
    takes: bool = False
    holders: tuple[int, ...] | None = None
    rescaled: Rescaled | None = None


@dataclass(frozen=True)
class Together:
    """The peers that meet: ``total`` gives the sums over them of tensors."""

    rank: int
    size: int
    total: Callable[[Sequence[Any]], Sequence[Any]]


def exchange(registry: Registry, due: Due, peers: Together) -> None:
    """Reads the program's values, makes them what the peers agree on, and gives those that are others back.

    Cost: a message with 8 bytes a shared value, with all of them in a new view, and one with those that are averaged.
    Raises ``UsageError`` for a shared value that differs between peers that were there before.
    """
    registry.collect()
    if peers.size > 1:
        shared, averaged = registry.of("shared"), registry.of("averaged")
        if shared and due.source is None:
            _compare(shared, peers)
        elif shared:
            _give(shared, due, peers)
        if averaged:
            _average(averaged, due, peers)
    registry.restore()


def _average(averaged: Mapping[str, tf.Variable], due: Due, peers: Together) -> None:
    """Who came to the state by this view brings nothing to it: its values are those of a program that just began."""
    holders = range(peers.size) if due.holders is None else due.holders
    values = [one.read_value() for one in averaged.values()]
    sums = peers.total(values if peers.rank in holders else [tf.zeros_like(value) for value in values])
    for variable, total in zip(averaged.values(), sums, strict=True):
        variable.assign(total / tf.cast(len(holders), total.dtype))


def _compare(shared: Mapping[str, tf.Variable], peers: Together) -> None:
    """All are equal exactly if each is the mean of all."""
    own = np.array([zlib.crc32(one.numpy().tobytes()) for one in shared.values()], np.int64)
    (total,) = peers.total([tf.constant(own)])
    for name, mine, all_of_them in zip(shared, own, total.numpy(), strict=True):
        if peers.size * mine != all_of_them:
            raise _differing(name, peers)


def _give(shared: Mapping[str, tf.Variable], due: Due, peers: Together) -> None:
    content = b"".join(one.numpy().tobytes() for one in shared.values())
    words = np.frombuffer(content + b"\0" * (-len(content) % 4), np.int32)
    (total,) = peers.total([tf.constant(words if peers.rank == due.source else np.zeros_like(words))])
    agreed, start = total.numpy().tobytes(), 0
    for name, one in shared.items():
        dtype = one.dtype.as_numpy_dtype
        stop = start + int(np.prod(one.shape)) * np.dtype(dtype).itemsize
        if agreed[start:stop] != content[start:stop]:
            if not due.takes:
                raise _differing(name, peers)
            one.assign(np.frombuffer(agreed[start:stop], dtype).reshape(one.shape))
        start = stop


def _differing(name: str, peers: Together) -> UsageError:
    return UsageError(
        f"the registered value {name!r} differs between the peers, seen by rank {peers.rank}: what is shared must "
        "change alike on all; register it with kind='averaged' or kind='own' where each peer has its own"
    )
