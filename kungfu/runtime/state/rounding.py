"""How far two peers' values of a variable are apart: by rounding, or by more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROUNDING", "Gap", "gap_of"]

# Of the largest value of a variable. Sums of float32 in another order differ by some 1e-7 of it a step; what a step
# that one peer did not do changes is more than this, or so small that it makes no difference.
ROUNDING = 1e-4
# The width of the last place of numbers that are coarser than that, and which NumPy does not know all.
_LAST_PLACE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Gap:
    """The largest difference from rank 0's values of the variable at ``place``, beside the ``largest`` of those.

    ``is_rounding``: only floating numbers differ, by at most ``ROUNDING`` times the largest (of half precision, by one
    in the last place of it), and what is not finite is the same on both.
    """

    place: int
    difference: float
    largest: float
    is_rounding: bool


def gap_of(place: int, own: NDArray[np.generic], reference: NDArray[np.generic]) -> Gap:
    """The gap between this peer's values and those of rank 0, of one shape and dtype.

    >>> gap_of(0, np.array([1.0, 2.00001]), np.array([1.0, 2.0])).is_rounding
    True
    >>> gap_of(0, np.array([1, 3]), np.array([1, 2])).is_rounding
    False
    """
    name = own.dtype.name
    floating = np.issubdtype(own.dtype, np.inexact) or name in _LAST_PLACE
    if not floating:
        return Gap(place, 0.0, 0.0, is_rounding=bool(np.array_equal(own, reference)))
    difference, largest, alike = 0.0, 0.0, True
    flat, other = own.reshape(-1), reference.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        mine, yours = (_wide(one[start : start + _AT_ONCE]) for one in (flat, other))
        finite = np.isfinite(yours)
        alike = alike and np.array_equal(np.where(finite, 0, mine), np.where(finite, 0, yours), equal_nan=True)
        mine, yours = mine[finite], yours[finite]
        if mine.size:
            with np.errstate(invalid="ignore", over="ignore"):
                apart = float(np.max(np.abs(mine - yours)))
            difference = max(difference, apart) if np.isfinite(apart) else float("inf")
            largest = max(largest, float(np.max(np.abs(yours))))
    limit = max(ROUNDING, _LAST_PLACE.get(name, 0.0)) * largest
    return Gap(place, difference, largest, is_rounding=bool(alike and difference <= limit))


def _wide(values: NDArray[Any]) -> NDArray[Any]:
    """In a type in which NumPy computes: half precision as float32."""
    return values.astype(np.float32) if values.dtype.name in _LAST_PLACE else values
