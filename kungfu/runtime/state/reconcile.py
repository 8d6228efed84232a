"""Peers whose variables differ take rank 0's values of them where they differ by rounding only.

Peers of another number of threads, or on another processor, add up in another order. What each computes from the same
numbers then differs in the last bits, and may be found at any barrier by its checksum. Only then are values looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from kungfu.runtime.attachment.protocol import Abandoned, never
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.fetch import fetch
from kungfu.runtime.state.lend import Desk, lent
from kungfu.runtime.state.place import Place
from kungfu.runtime.state.rounding import Gap, gap_of
from kungfu.runtime.state.state import ReplicatedState

__all__ = ["reconciled"]


class _Copies:
    """Some variables beside the state: on their way, or as they were."""

    def __init__(self, arrays: Sequence[NDArray[np.generic]]) -> None:
        self.arrays = list(arrays)

    def lent(self) -> Buffers:
        return Buffers.of(self.arrays)

    @contextmanager
    def overwritten(self) -> Iterator[Buffers]:
        yield self.lent()


@contextmanager
def reconciled(
    state: ReplicatedState, place: Place, places: Sequence[int], *, desk: Desk, abandoned: Abandoned = never
) -> Iterator[list[Gap]]:
    """Takes rank 0's values of the shared variables at ``places`` and keeps those that differ by rounding only; gives
    how far each was apart, on rank 0 nothing. Within the block this peer lends what it has of them.

    They come as the state comes to a joiner, and are held once more while that lasts. Raises what ``fetch`` raises.
    """
    own = [np.ascontiguousarray(one) for one in state.values(places)]
    copies, gaps = _Copies(own), list[Gap]()
    if not place.holds:
        copies = _Copies([np.empty_like(one) for one in own])
        fetch(copies, place, abandoned=abandoned)
        gaps = [gap_of(*one) for one in zip(places, own, copies.arrays, strict=True)]
        taken = zip(gaps, copies.arrays, strict=True)
        state.assign({gap.place: array for gap, array in taken if gap.is_rounding})
    with lent(copies, place, desk=desk):
        yield gaps
