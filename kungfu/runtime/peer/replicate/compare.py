"""Comparing the states of peers: all of each variable after a rescale, a sample of it at every other barrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kungfu.runtime.peer.replicate.buffers import Buffers

__all__ = ["differing", "sampled"]

_SLICES = 32
_SMALL_BYTES = 1 << 16  # a variable of up to so many is compared whole


def sampled(buffers: Buffers, turn: int) -> Buffers:
    """One of 32 slices of every large variable, the next one with every ``turn``; small ones are always there whole.

    The slices are agreed, since ``turn`` is, and 32 turns in a row see every byte.

    >>> array = np.zeros(1 << 20, np.uint8)
    >>> [sampled(Buffers.of([array, array[:5]]), turn).total_bytes for turn in (0, 31)]
    [32773, 32773]
    """
    address, size = buffers.table.T
    first = np.where(size > _SMALL_BYTES, turn % _SLICES, 0)
    last = np.where(size > _SMALL_BYTES, turn % _SLICES + 1, _SLICES)
    start, stop = size * first // _SLICES, size * last // _SLICES
    return replace(buffers, table=np.stack([address + start, stop - start], axis=1))


def differing(digests: Mapping[int, Mapping[str, int]]) -> str | None:
    """The first variable on which the peers disagree, and who differs from the lowest rank; ``None`` if all agree.

    >>> differing({0: {"w": 1, "b": 2}, 1: {"w": 1, "b": 3}})
    'b of rank 1 is not that of rank 0'
    """
    reference, *others = sorted(digests)
    for name, checksum in digests[reference].items():
        for rank in others:
            if digests[rank].get(name) != checksum:
                return f"{name} of rank {rank} is not that of rank {reference}"
    for rank in others:
        if extra := set(digests[rank]) - set(digests[reference]):
            return f"{min(extra)} of rank {rank} is not there on rank {reference}"
    return None
