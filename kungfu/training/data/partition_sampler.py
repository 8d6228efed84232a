"""The order of samples in partitions that are read in sequence: each peer is given rows of the partition that it holds.

What the peers hold is an `Assignment`. Every peer computes it, and keeps it in a variable that goes along with the
state: a peer that joins, and a job that is resumed, go on from there. The variable holds the assignment at the start of
the step that is under way, and the batch of that step, from which the one after it follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import InternalError
from kungfu.training.data.partition_assignment import Assignment, Partitions
from kungfu.training.data.sampler import Remainder, SerialSampler, StepSlice

__all__ = ["PartitionSampler"]

# Parts of peers that are gone, before they are handed out again.
_MOST_RETURNED = 256
# The loader is ahead by two steps.
_MOST_STEPS_AHEAD = 8


class PartitionSampler:
    """Which rows belong to a slice.

    Args:
        lengths: The samples of each partition.
        seed: From it and the epoch follows the order in which partitions are handed out.
        remainder: Whether a last step with fewer samples than the others is kept or dropped.

    On rescale:
        A peer goes on with the partition that it holds; see `partition_assignment`.
    """

    def __init__(self, lengths: Sequence[int], seed: int | None, remainder: Remainder = "keep") -> None:
        self._partitions = Partitions.shuffled(lengths, seed, drops=remainder == "drop")
        self._serial = SerialSampler(self._partitions.samples, None, remainder)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._base = Assignment.at_start(0, [0])
        self._batch = 0  # of the step for which it is
        self.version: int | None = None  # of the view in which it is
        self._variable: tf.Variable | None = None

    @property
    def samples(self) -> int:
        """Those of all partitions."""
        return self._partitions.samples

    def make_variable(self, *, most_peers: int) -> tf.Variable:
        """The variable in which the assignment goes along with the state."""
        room = 6 + 4 * most_peers + 3 * _MOST_RETURNED
        self._variable = tf.Variable(tf.zeros([room], tf.int64), trainable=False, name="kungfu/partitions")
        return self._variable

    def reach(self, step_slice: StepSlice, members: Sequence[int]) -> None:
        """All peers are at this slice, from the program's thread.

        Args:
            step_slice: The next step.
            members: The ids of the peers of its view, by rank.
        """
        base = self._base if step_slice.version == self.version else None
        base = self._at(base, step_slice, batch=self._batch) if base is not None else None
        if base is None:  # another view, whose state may be another peer's; or this run was resumed
            base, batch = self._from_variable()
            base = self._at(base, step_slice, batch=batch)
        if base is None:
            raise InternalError(f"the partitions that peers hold are not known at {step_slice.position}")
        self._base, self.version = base.among(members), step_slice.version
        self._batch = step_slice.global_batch_size
        self._to_variable()

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """The rows of this peer's rank, numbered over all partitions."""
        base = self._ahead(step_slice)
        of_members, _ = self._partitions.step(base, step_slice.global_batch_size)
        runs = [np.arange(one.start, one.end) + self._starts[one.partition] for one in of_members[step_slice.rank]]
        return np.concatenate([np.zeros(0, np.int64), *runs])

    def largest_share(self, step_slice: StepSlice) -> int:
        """That of rank 0."""
        return self._serial.largest_share(step_slice)

    def after(self, step_slice: StepSlice) -> StepSlice:
        """The samples of all peers further on, or at the start of the next epoch."""
        return self._serial.after(step_slice)

    # ---- the assignment ----------------------------------------------------------------------------------------------

    def _at(self, base: Assignment, step_slice: StepSlice, *, batch: int) -> Assignment | None:
        """The assignment where the slice begins: this one, or the one after the step that it was kept for."""
        if base.position == step_slice.position:
            return base
        after = self._partitions.step(base, batch)[1] if batch else base
        return after if after.position == step_slice.position else None

    def _ahead(self, step_slice: StepSlice) -> Assignment:
        """The assignment at a slice that is guessed: steps of one size, from what is known."""
        base = self._base
        for _ in range(_MOST_STEPS_AHEAD):
            if base.position == step_slice.position:
                return base
            base = self._partitions.step(base, step_slice.global_batch_size)[1]
        raise InternalError(f"a batch at {step_slice.position} was cut, and the peers are at {self._base.position}")

    def _from_variable(self) -> tuple[Assignment, int]:
        row = np.zeros(6, np.int64) if self._variable is None else self._variable.numpy()
        # Nothing was kept yet: this is where the data begin.
        return (Assignment.from_row(row[1:]), int(row[0])) if row[4] else (self._base, 0)

    def _to_variable(self) -> None:
        if self._variable is not None:
            row = self._base.to_row(self._variable.shape[0] - 1)
            self._variable.assign(np.concatenate([[self._batch], row]))
