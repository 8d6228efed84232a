"""The samples of a step, and the slice of each peer: pure arithmetic on the position in the data.

All peers agree on the epoch and on the position in a permutation that seed and epoch determine. A step consumes the
next ``global_batch_size`` samples (fewer at the end of an epoch), and every peer processes its slice of them. So an
epoch sees each sample exactly once, however the membership changes between two steps (paper 003, section V-C).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kungfu.runtime.core.view import spread


@dataclass(frozen=True)
class Position:
    """The position in the data, equal on all peers: ``offset`` samples of epoch ``epoch`` (from 0) are done."""

    epoch: int
    offset: int


@dataclass(frozen=True)
class Stamp:
    """The position in the data for which a batch was made; a step at any other position refuses the batch."""

    epoch: int
    offset: int  # the number of samples of the epoch done before the batch
    version: int
    micro: int = 0  # the index, from 0, of the micro-batch in this peer's share of the step
    micros: int = 1  # the number of micro-batches into which the share was cut
    # True if the share has no sample; the batch is then a sample of another peer, and is not counted.
    empty: bool = False


@lru_cache(maxsize=2)
def shuffled(samples: int, *, seed: int | None, epoch: int) -> NDArray[np.int64]:
    """The order in which an epoch sees its samples: a permutation of 0..samples-1 determined by seed and epoch.

    Without a seed, the order of the data is kept.
    """
    if seed is None:
        order = np.arange(samples)
    else:
        order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(samples)
    order.setflags(write=False)  # the array is shared by all callers
    return order


def slice_indices(
    position: Position, *, samples: int, seed: int | None, global_batch_size: int, size: int, rank: int
) -> NDArray[np.int64]:
    """The indices of this peer's slice of the next step; may be empty if the step has fewer samples than peers.

    Args:
        seed: The seed of the order of the samples; ``None`` keeps the order of the data.

    >>> batch = {"samples": 100, "seed": 1, "global_batch_size": 64}
    >>> [len(slice_indices(Position(0, 90), **batch, size=4, rank=rank)) for rank in range(4)]
    [3, 3, 2, 2]
    """
    step_samples = min(global_batch_size, samples - position.offset)
    counts = spread(step_samples, size)
    start = position.offset + sum(counts[:rank])
    return shuffled(samples, seed=seed, epoch=position.epoch)[start : start + counts[rank]]


def advanced(position: Position, step_samples: int, *, samples: int, least: int = 1) -> Position:
    """The position after a step.

    Args:
        least: The epoch ends if fewer samples than this remain.

    >>> advanced(Position(0, 64), 32, samples=100), advanced(Position(0, 64), 32, samples=100, least=32)
    (Position(epoch=0, offset=96), Position(epoch=1, offset=0))
    """
    offset = position.offset + step_samples
    return (
        Position(position.epoch + 1, 0) if offset + min(least, samples) > samples else Position(position.epoch, offset)
    )
