"""In which order peers take samples: one small interface, and the serial order.

The step itself guards what happens exactly once: it compares the stamp of a batch with the position that all peers
agree on. A sampler only says which samples belong to a slice, in the loading thread, ahead of the step. So it may
ask others there, as one would that hands out partitions on demand, and it may be wrong about what comes next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kungfu.runtime.api import Position, advanced, slice_indices, spread

__all__ = ["Remainder", "Sampler", "SerialSampler", "StepSlice"]

Remainder = Literal["keep", "drop"]


@dataclass(frozen=True)
class StepSlice:
    """One step as one peer sees it before: where it begins, in which view, and how many samples it takes."""

    position: Position
    version: int
    size: int
    rank: int
    global_batch_size: int


class Sampler(Protocol):
    """Which samples belong to a slice."""

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """This peer's samples of the step, maybe none."""
        ...

    def largest_share(self, step_slice: StepSlice) -> int:
        """The samples of the peer that has most of them in this step; the same number on every peer."""
        ...

    def after(self, step_slice: StepSlice) -> StepSlice:
        """The slice after it, if view and batch stay: a guess, by which the loader runs ahead."""
        ...


@dataclass(frozen=True)
class SerialSampler:
    """One agreed position in a permutation of each epoch: a step takes the next samples from there.

    What remains of an epoch is always one run of the permutation, so one number says what is done, whoever did it.

    Args:
        samples: Those that an epoch has.
        seed: From it and the epoch's number follows the permutation; without one samples come as the data has them.
        remainder: Whether a last step with fewer samples than the others is kept or dropped.

    Reference:
        Xie et al., *Elan*, 2020, section V-C.
    """

    samples: int
    seed: int | None
    remainder: Remainder = "keep"

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """The slice of this peer's rank."""
        return slice_indices(
            step_slice.position,
            samples=self.samples,
            seed=self.seed,
            global_batch_size=step_slice.global_batch_size,
            size=step_slice.size,
            rank=step_slice.rank,
        )

    def largest_share(self, step_slice: StepSlice) -> int:
        """That of rank 0: uneven slices differ by one sample, and the lower ranks have it."""
        return spread(self._taken(step_slice), step_slice.size)[0]

    def after(self, step_slice: StepSlice) -> StepSlice:
        """The samples of all peers further on, or at the start of the next epoch."""
        # The fewest samples that make a step; what is less ends the epoch.
        least = step_slice.global_batch_size if self.remainder == "drop" else 1
        return replace(
            step_slice,
            position=advanced(step_slice.position, self._taken(step_slice), samples=self.samples, least=least),
        )

    def _taken(self, step_slice: StepSlice) -> int:
        return min(step_slice.global_batch_size, self.samples - step_slice.position.offset)
