"""Which of a sequence of requests fit into a number of free GPUs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kungfu.schedule.state import Ints

__all__ = ["first_fit_mask", "prefix_that_fits"]


def prefix_that_fits(sizes: Ints, *, free: int) -> int:
    """How many of the first requests fit together; the first that does not fit blocks all behind it.

    >>> prefix_that_fits(np.array([2, 1, 4, 1]), free=4)
    2
    """
    return int(np.searchsorted(np.cumsum(sizes), free, side="right"))


def first_fit_mask(sizes: Ints, *, free: int) -> npt.NDArray[np.bool_]:
    """Which requests run if each, in order, takes its GPUs when they are there and is passed over when not.

    A request that does not fit is larger than what is left, so with it go all others of its size and above: there
    are at most as many rounds as different sizes, each a prefix sum over what is left.

    >>> first_fit_mask(np.array([3, 2, 1]), free=4).tolist()
    [True, False, True]
    """
    chosen = np.zeros(len(sizes), dtype=np.bool_)
    left = np.flatnonzero(sizes <= free)
    while len(left):
        totals = np.cumsum(sizes[left])
        fitting = int(np.searchsorted(totals, free, side="right"))
        chosen[left[:fitting]] = True
        if fitting:
            free -= int(totals[fitting - 1])
        left = left[fitting + 1 :]
        left = left[sizes[left] <= free]
    return chosen
