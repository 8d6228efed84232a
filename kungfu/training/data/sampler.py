"""The order in which peers use samples: the interface of a sampler, and the serial order.

The step itself guarantees that each sample is used exactly once: it refuses a batch that was cut for another position.
A sampler only selects the samples of a step, in the loading thread, before that step. So a sampler may block that
thread, for example while it requests a partition, and may select samples for a predicted step that never runs.
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
    """A coming step as one peer sees it: position, view, and number of samples."""

    position: Position
    version: int
    size: int
    rank: int
    global_batch_size: int

    def step_samples(self, samples: int) -> int:
        """The number of samples of all peers together in the step; ``samples`` is the number in an epoch."""
        return min(self.global_batch_size, samples - self.position.offset)

    def largest_share(self, samples: int) -> int:
        """The number of samples of the largest share, rank 0's; shares differ by at most one sample."""
        return spread(self.step_samples(samples), self.size)[0]

    def after(self, samples: int, *, remainder: Remainder = "keep") -> StepSlice:
        """Predicts the next slice, possibly in the next epoch, assuming that view and batch size do not change."""
        # The minimum number of samples of a step; a smaller remainder ends the epoch.
        least = self.global_batch_size if remainder == "drop" else 1
        return replace(self, position=advanced(self.position, self.step_samples(samples), samples=samples, least=least))


class Sampler(Protocol):
    """An order of samples: selects the samples of each peer in each step."""

    @property
    def samples(self) -> int:
        """The number of samples in an epoch."""
        ...

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """The indices of this peer's samples in the step, possibly none."""
        ...


@dataclass(frozen=True)
class SerialSampler:
    """Permutes the samples of each epoch; each step takes the next samples of the permutation.

    The rest of an epoch is always contiguous in the permutation, so one number describes the progress of all peers.

    Args:
        seed: The seed that determines, with the epoch's number, the permutation; ``None`` for the order of the data.

    Reference:
        Xie et al., *Elan*, 2020, section V-C.
    """

    samples: int
    seed: int | None

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """The indices of this peer's samples in the step."""
        return slice_indices(
            step_slice.position,
            samples=self.samples,
            seed=self.seed,
            global_batch_size=step_slice.global_batch_size,
            size=step_slice.size,
            rank=step_slice.rank,
        )


def sample_numbers(step_slice: StepSlice, samples: int) -> NDArray[np.int64]:
    """The numbers of this rank's samples, counted from the first epoch on; each epoch has ``samples`` samples."""
    return SerialSampler(samples, None).indices(step_slice) + step_slice.position.epoch * samples


@dataclass(frozen=True)
class PassSampler:
    """Cuts epochs of a given number of samples, in sequence, from passes over data with another number of samples.

    Args:
        samples: The number of samples in an epoch.
        pass_samples: The number of samples in the data. At the end of a pass, a step may use samples of two passes.
        seed: The seed that determines, with the pass's number, the order; ``None`` for the order of the data.
    """

    samples: int
    pass_samples: int
    seed: int | None

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """The indices of this peer's samples in the step."""
        numbers = sample_numbers(step_slice, self.samples)
        passes, places = np.divmod(numbers, self.pass_samples)
        for one in np.unique(passes):  # one pass, or two if a pass ends in the step
            order, here = shuffled(self.pass_samples, seed=self.seed, epoch=int(one)), passes == one
            numbers[here] = order[places[here]]
        return numbers
