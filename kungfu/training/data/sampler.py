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

from kungfu.runtime.api import Position, advanced, shuffled, slice_indices, spread

Remainder = Literal["keep", "drop"]


@dataclass(frozen=True)
class StepSlice:
    """One step as one peer sees it before: its position, its view, and the number of its samples."""

    position: Position
    version: int
    size: int
    rank: int
    global_batch_size: int

    def step_samples(self, samples: int) -> int:
        """The samples of all peers together in the step, for an epoch of this many samples."""
        return min(self.global_batch_size, samples - self.position.offset)

    def largest_share(self, samples: int) -> int:
        """The share of rank 0, the same number on every peer: uneven slices differ by one sample, low ranks have it."""
        return spread(self.step_samples(samples), self.size)[0]

    def after(self, samples: int, *, remainder: Remainder = "keep") -> StepSlice:
        """The slice after it, maybe of the next epoch, if view and batch stay: a guess, by which the loader runs ahead.

        Args:
            samples: The samples of an epoch.
            remainder: "keep" or "drop" a last step with fewer samples than the others.
        """
        # The fewest samples that make a step; what is less ends the epoch.
        least = self.global_batch_size if remainder == "drop" else 1
        return replace(self, position=advanced(self.position, self.step_samples(samples), samples=samples, least=least))


class Sampler(Protocol):
    """The samples of each slice."""

    @property
    def samples(self) -> int:
        """The samples of an epoch."""
        ...

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """This peer's samples of the step, maybe none."""
        ...


@dataclass(frozen=True)
class SerialSampler:
    """One agreed position in a permutation of each epoch: a step takes the next samples from there.

    What remains of an epoch is always one run of the permutation, so one number says what is done, whoever did it.

    Args:
        samples: The samples of an epoch.
        seed: From it and the epoch's number follows the permutation; without one samples come as the data has them.

    Reference:
        Xie et al., *Elan*, 2020, section V-C.
    """

    samples: int
    seed: int | None

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


def sample_numbers(step_slice: StepSlice, samples: int) -> NDArray[np.int64]:
    """The samples of this peer's rank, in epochs of this many, by their numbers: those of all epochs are counted on."""
    return SerialSampler(samples, None).indices(step_slice) + step_slice.position.epoch * samples


@dataclass(frozen=True)
class PassSampler:
    """Epochs of this many samples, cut one after the other from passes over data that has another number of them.

    Args:
        samples: The samples of an epoch.
        pass_samples: The samples of the data. A step may take the last samples of a pass and the first of the next one.
        seed: From it and the number of the pass follows the order; without one samples come as the data has them.
    """

    samples: int
    pass_samples: int
    seed: int | None

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """The slice of this peer's rank."""
        numbers = sample_numbers(step_slice, self.samples)
        passes, places = np.divmod(numbers, self.pass_samples)
        for one in np.unique(passes):  # one of them, or two where a pass ends in the step
            order, here = shuffled(self.pass_samples, seed=self.seed, epoch=int(one)), passes == one
            numbers[here] = order[places[here]]
        return numbers
