"""Compares the states of peers: checksums show which variables differ, and values show by how much.

All bytes of each variable are compared after a rescale, and at a barrier that is held because a comparison between two
steps found different checksums. At every other barrier only a sample is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kungfu.runtime.state.buffers import Buffers

Compared = Literal["all", "part"]

_SLICES = 32
_SMALL_BYTES = 1 << 16  # a variable of up to this size is compared as a whole

# Relative to the largest value of a variable. Sums of float32 in another order differ by about 1e-7 of that value per
# step; a step that one peer missed changes the variable by more than ``ROUNDING``, or by too little to matter.
ROUNDING = 1e-4
# The relative width of the last place of low-precision types, some of which NumPy does not know.
_LAST_PLACE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_ELEMENTS_AT_ONCE = 1 << 20


def sampled(buffers: Buffers, turn: int) -> Buffers:
    """One of 32 slices of every large variable, a different slice each ``turn``; small variables are included whole.

    All peers use the same slices, since they agree on ``turn``; 32 consecutive turns cover every byte.

    Args:
        turn: A number that is the same on all peers, and increases by one each time.

    >>> array = np.zeros(1 << 20, np.uint8)
    >>> [sampled(Buffers.of([array, array[:5]]), turn).total_bytes for turn in (0, 31)]
    [32773, 32773]
    """
    address, size = buffers.table.T
    first = np.where(size > _SMALL_BYTES, turn % _SLICES, 0)
    last = np.where(size > _SMALL_BYTES, turn % _SLICES + 1, _SLICES)
    start, stop = size * first // _SLICES, size * last // _SLICES
    return replace(buffers, table=np.stack([address + start, stop - start], axis=1))


def differing_variables(digests: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """The variables that differ: for each index, the ranks whose checksum is not that of the lowest rank.

    Args:
        digests: The checksums of each rank's variables, in order; names cannot be compared, since Keras numbers them
            separately in each process. A variable beyond the end of one rank's list differs too.

    >>> differing_variables({0: [1, 2], 1: [1, 3], 2: [1, 2]})
    {1: [1]}
    """
    reference, *others = sorted(digests)
    found: dict[int, list[int]] = {}
    for rank in others:
        pairs = zip_longest(digests[reference], digests[rank])
        for index in [index for index, (one, other) in enumerate(pairs) if one != other]:
            found.setdefault(index, []).append(rank)
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class VariableGap:
    """The distance of a peer's values of the variable at ``index`` from rank 0's values.

    Args:
        index: The index of the variable in the order of the digest.
        difference: The largest absolute difference of two elements.
        largest: The largest absolute value of rank 0.
        is_rounding: True if only floating-point numbers differ, by at most ``ROUNDING`` times the largest value (for
            half precision, by one in its last place), and values that are not finite are equal on both peers.
    """

    index: int
    difference: float
    largest: float
    is_rounding: bool


def gap_of(index: int, own: NDArray[np.generic], reference: NDArray[np.generic]) -> VariableGap:
    """The difference between two peers' values of one variable.

    Args:
        own: This peer's value.

    >>> gap_of(0, np.array([1.0, 2.00001]), np.array([1.0, 2.0])).is_rounding
    True
    >>> gap_of(0, np.array([1, 3]), np.array([1, 2])).is_rounding
    False
    """
    name = own.dtype.name
    floating = np.issubdtype(own.dtype, np.inexact) or name in _LAST_PLACE
    if not floating:
        # Integers and booleans are exact: a difference between them is never rounding.
        return VariableGap(index, 0.0, 0.0, is_rounding=bool(np.array_equal(own, reference)))
    difference, largest, alike = 0.0, 0.0, True
    flat, other = own.reshape(-1), reference.reshape(-1)
    for start in range(0, flat.size, _ELEMENTS_AT_ONCE):
        mine, yours = (_wide(one[start : start + _ELEMENTS_AT_ONCE]) for one in (flat, other))
        # NaN and infinities have no distance: they must be equal on both peers, at the same places.
        finite = np.isfinite(yours)
        alike = alike and np.array_equal(np.where(finite, 0, mine), np.where(finite, 0, yours), equal_nan=True)
        mine, yours = mine[finite], yours[finite]
        if mine.size:
            with np.errstate(invalid="ignore", over="ignore"):
                apart = float(np.max(np.abs(mine - yours)))
            # Only this peer's value is not finite, or the difference overflows: neither is rounding.
            difference = max(difference, apart) if np.isfinite(apart) else float("inf")
            largest = max(largest, float(np.max(np.abs(yours))))
    limit = max(ROUNDING, _LAST_PLACE.get(name, 0.0)) * largest
    return VariableGap(index, difference, largest, is_rounding=bool(alike and difference <= limit))


def _wide(values: NDArray[Any]) -> NDArray[Any]:
    """The values in a type that NumPy can compute with: half precision as float32."""
    return values.astype(np.float32) if values.dtype.name in _LAST_PLACE else values
