"""Comparing the states of peers: all of each variable after a rescale, a sample of it at every other barrier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from kungfu.runtime.state.buffers import Buffers

__all__ = ["differing", "first_difference", "sampled"]

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


def differing(digests: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """By place, the ranks whose variable is not that of the lowest rank; a place beyond the end of one differs too.

    Variables are known by their places: Keras numbers their names in each process by itself.

    >>> differing({0: [1, 2], 1: [1, 3], 2: [1, 2]})
    {1: [1]}
    """
    reference, *others = sorted(digests)
    found: dict[int, list[int]] = {}
    for rank in others:
        pairs = zip_longest(digests[reference], digests[rank])
        for place in [place for place, (one, other) in enumerate(pairs) if one != other]:
            found.setdefault(place, []).append(rank)
    return dict(sorted(found.items()))


def first_difference(names: Sequence[str], digests: Mapping[int, Sequence[int]]) -> str | None:
    """The first variable on which the peers disagree, by the lowest rank's ``names``, and who differs from that rank;
    ``None`` if all agree.

    >>> first_difference(["w", "b"], {0: [1, 2], 1: [1, 3]})
    'b of rank 1 is not that of rank 0'
    """
    found = differing(digests)
    if not found:
        return None
    place, reference = min(found), min(digests)
    name = names[place] if place < len(names) else f"variable {place}"
    return f"{name} of rank {found[place][0]} is not that of rank {reference}"
