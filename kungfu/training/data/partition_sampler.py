"""The order of samples in partitions that are read in sequence: each peer receives rows of its current partition.

An `Assignment` describes the partitions of the peers. Every peer computes it, and stores it in a replicated variable,
from which joiners and resumed jobs continue. The variable holds the assignment at the start of the current step, and
the batch size of that step; the next assignment follows from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import InternalError
from kungfu.training.data.partition_assignment import Assignment, Partitions
from kungfu.training.data.sample_source import SampleSource
from kungfu.training.data.sampler import Remainder, StepSlice

# The variable has a constant size, so that a run may be resumed with more peers.
_LEAST_ROOM_FOR = 256  # peers
# The most parts of lost peers that wait to be handed out again.
_MOST_RETURNED = 256
# The loader works at most two steps ahead.
_MOST_STEPS_AHEAD = 8


@runtime_checkable
class SequentialSource(SampleSource, Protocol):
    """Samples in partitions that are read from their start.

    Args:
        passed: The number of samples read only to reach the position of another peer; counted by the loader's thread.
    """

    passed: int

    def make_sampler(self, seed: int | None, remainder: Remainder) -> Any:
        """Makes the sampler that suits these partitions."""
        ...

    def read_to(self, indices: NDArray[np.int64]) -> None:
        """Reads up to the first of these samples in each partition, so that all of them can be taken without delay."""
        ...


class PartitionSampler:
    """The rows of each slice, selected from partitions.

    Args:
        lengths: The samples of each partition.
        seed: The seed that determines, with the epoch, the order in which partitions are handed out.
        remainder: "keep" or "drop" a last step with fewer samples than the others.

    On rescale:
        A peer continues with its current partition; see `partition_assignment`.
    """

    def __init__(self, lengths: Sequence[int], seed: int | None, remainder: Remainder = "keep") -> None:
        self._partitions = Partitions.shuffled(lengths, seed, drops=remainder == "drop")
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._base = Assignment.at_start(0, [0])
        self._after = self._base  # the assignment after the step of `_base`
        self._batch = 0  # the batch size of that step
        self.version: int | None = None  # the version of that step's view
        self.may_read_long = False
        self._variable: tf.Variable | None = None

    @property
    def samples(self) -> int:
        """The samples of all partitions."""
        return self._partitions.samples

    def make_variable(self, *, most_peers: int) -> tf.Variable:
        """Makes the variable that stores the assignment as part of the state."""
        room = 6 + 4 * max(most_peers, _LEAST_ROOM_FOR) + 3 * _MOST_RETURNED
        self._variable = tf.Variable(tf.zeros([room], tf.int64), trainable=False, name="kungfu/partitions")
        return self._variable

    def reach(self, step_slice: StepSlice, members: Sequence[int]) -> None:
        """Notes in the program's thread that all peers are at this slice.

        Afterwards ``may_read_long``, equal on all peers, is True if a peer may have to read to its position in a
        partition before it has its share: it takes over another peer's partition; or the view or the batch size has
        changed, and the loader may still work on other data.

        Args:
            step_slice: The next step.
            members: The ids of the peers of its view, by rank.
        """
        is_known, batch = step_slice.version == self.version, step_slice.global_batch_size
        if is_known and step_slice.position in (self._base.position, self._after.position):
            base = self._base if step_slice.position == self._base.position else self._after
        else:  # another view, whose state may stem from another peer; or a resumed run
            base = self._from_variable(step_slice)
        base, is_another = base.among(members), not is_known or batch != self._batch
        if base is self._base and not is_another:  # a further micro-batch, or the step is repeated
            return
        of_members, self._after = self._partitions.step(base, batch)
        self.may_read_long = is_another or self._partitions.begins_within(base, of_members)
        self._base, self._batch, self.version = base, batch, step_slice.version
        if self._variable is not None:
            row = base.to_row(self._variable.shape[0] - 1)
            self._variable.assign(np.concatenate([[batch], row]))

    def order(self, epoch: int) -> NDArray[np.int64]:
        """All rows of an epoch in the order in which a single peer reads them."""
        numbers = self._partitions.order(epoch).tolist()
        return np.concatenate([np.arange(self._starts[number], self._starts[number + 1]) for number in numbers])

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """The rows of this peer's rank, numbered over all partitions."""
        base = self._ahead(step_slice)
        of_members, _ = self._partitions.step(base, step_slice.global_batch_size)
        runs = [np.arange(one.start, one.end) + self._starts[one.partition] for one in of_members[step_slice.rank]]
        return np.concatenate([np.zeros(0, np.int64), *runs])

    # ---- the assignment ----------------------------------------------------------------------------------------------

    def _ahead(self, step_slice: StepSlice) -> Assignment:
        """The assignment at a predicted slice, reached by steps of equal size from the known assignment."""
        base = self._base
        for _ in range(_MOST_STEPS_AHEAD):
            if base.position == step_slice.position:
                return base
            base = self._partitions.step(base, step_slice.global_batch_size)[1]
        raise InternalError(f"a batch at {step_slice.position} was cut, and the peers are at {self._base.position}")

    def _from_variable(self, step_slice: StepSlice) -> Assignment:
        """The assignment at the start of the slice: the stored assignment, or the one that follows it."""
        row = np.zeros(6, np.int64) if self._variable is None else self._variable.numpy()
        # Nothing is stored yet: the data begin here.
        base, batch = (Assignment.from_row(row[1:]), int(row[0])) if row[4] else (self._base, 0)
        if base.position != step_slice.position and batch:
            base = self._partitions.step(base, batch)[1]
        if base.position != step_slice.position:
            raise InternalError(f"the partitions that peers hold are not known at {step_slice.position}")
        return base
