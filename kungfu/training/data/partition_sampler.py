"""The order of samples in partitions that are read in sequence: each peer receives rows of its current partition.

An `Assignment` describes the partitions of the peers. Every peer computes it, and stores it in a replicated variable,
from which joiners and resumed jobs continue. The variable holds the assignment at the start of the current step, and
the batch size of that step; the next assignment follows from both, so the peers agree without a message.

Each partition is read by one peer. The partitions of an epoch are handed out in a shuffled order: a peer that has
finished its partition receives the next one.

- A peer joins: it holds nothing, and receives the next partition.
- A peer leaves or is lost: the rest of its partition, from the position after the finished steps, is handed out before
  any other partition.
- No partition is left: a peer receives the second half of the longest rest that another peer holds, so all peers
  have their share of every step until the epoch ends.

Reference:
    Wu et al., *Elastic deep learning in multi-tenant GPU cluster*, section 5.3, where a leader hands out partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import InternalError
from kungfu.runtime.api import Position, advanced, shuffled, spread
from kungfu.training.data.sample_source import SampleSource
from kungfu.training.data.sampler import Remainder, StepSlice

# The variable has a constant size, so that a run may be resumed with more peers.
_LEAST_ROOM_FOR = 256  # peers
# The maximum number of parts of lost peers that wait to be handed out again.
_MOST_RETURNED = 256
# The loader works at most two steps ahead.
_MOST_STEPS_AHEAD = 8


@dataclass(frozen=True)
class Part:
    """Rows ``start`` to ``end`` of a partition."""

    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Assignment:
    """The partitions of the peers at a position.

    Args:
        held: The part that each peer reads; ``None`` for a peer that receives another part next.
        returned: The rests of the partitions of peers that left, in the order in which they will be handed out. New
            rests are appended: if a step is repeated after a loss of peers, a peer that has already read to the start
            of a rest receives that rest again.
        handed_out: The number of partitions already assigned, in the epoch's order.
    """

    position: Position
    members: tuple[int, ...]
    held: tuple[Part | None, ...]
    returned: tuple[Part, ...] = ()
    handed_out: int = 0

    @classmethod
    def at_start(cls, epoch: int, members: Sequence[int]) -> Assignment:
        """The assignment at the beginning of an epoch, with nothing handed out."""
        return cls(Position(epoch, 0), tuple(members), (None,) * len(members))

    def among(self, members: Sequence[int]) -> Assignment:
        """The assignment in another view: parts of peers that left will be handed out again; new peers hold none."""
        if tuple(members) == self.members:
            return self
        had = dict(zip(self.members, self.held, strict=True))
        gone = tuple(part for one, part in had.items() if part is not None and one not in members)
        return replace(
            self,
            members=tuple(members),
            held=tuple(had.get(one) for one in members),
            returned=(*self.returned, *gone),
        )

    # ---- as numbers, for a variable of the replicated state ----------------------------------------------------------

    def to_row(self, room: int) -> NDArray[np.int64]:
        """Encodes the assignment as ``room`` integers, padded with zeros; see `from_row`."""
        parts = [*(Part(-1, 0, 0) if one is None else one for one in self.held), *self.returned]
        lengths = [len(self.members), len(self.returned)]
        numbers = [self.position.epoch, self.position.offset, self.handed_out, *lengths, *self.members]
        numbers += [number for one in parts for number in (one.partition, one.start, one.end)]
        if len(numbers) > room:
            raise InternalError(
                f"{len(self.returned)} parts of partitions were returned, more than {room} numbers hold"
            )
        return np.array(numbers + [0] * (room - len(numbers)), np.int64)

    @classmethod
    def from_row(cls, row: NDArray[np.int64]) -> Assignment:
        """The assignment from the result of `to_row`."""
        epoch, offset, handed_out, members, returned = row[:5].tolist()
        parts = row[5 + members : 5 + members + 3 * (members + returned)].reshape(-1, 3).tolist()
        made = [None if partition < 0 else Part(partition, start, end) for partition, start, end in parts]
        return cls(
            Position(epoch, offset),
            tuple(row[5 : 5 + members].tolist()),
            tuple(made[:members]),
            tuple(one for one in made[members:] if one is not None),
            handed_out,
        )


@dataclass(frozen=True)
class Partitions:
    """The partitions of the data, by their numbers.

    Args:
        lengths: The number of rows of each partition.
        order: Returns the order in which the partitions of an epoch are handed out.
        drops: True if an epoch leaves out a last step with fewer samples than the others.
    """

    lengths: tuple[int, ...]
    order: Callable[[int], NDArray[np.int64]]
    drops: bool = False

    @classmethod
    def shuffled(cls, lengths: Sequence[int], seed: int | None, *, drops: bool = False) -> Partitions:
        """Partitions in an order derived from the seed and the epoch; without a seed, in the order of their numbers."""
        return cls(tuple(lengths), lambda epoch: shuffled(len(lengths), seed=seed, epoch=epoch), drops)

    @property
    def samples(self) -> int:
        """The number of rows of all partitions."""
        return sum(self.lengths)

    @staticmethod
    def begins_within(before: Assignment, of_members: Sequence[Sequence[Part]]) -> bool:
        """True if, in the result of `step`, a member begins inside a partition that this member did not read before."""
        return any(
            part.start > 0 and (held is None or (held.partition, held.start) != (part.partition, part.start))
            for held, parts in zip(before.held, of_members, strict=True)
            for part in parts
        )

    def step(self, before: Assignment, batch: int) -> tuple[list[list[Part]], Assignment]:
        """The parts that each member reads in a step of at most ``batch`` samples, and the assignment after it."""
        step_samples = min(batch, self.samples - before.position.offset)
        after, of_members = before, []
        for rank, count in enumerate(spread(step_samples, len(before.members))):
            parts, after = self._cut(after, rank, count)
            of_members.append(parts)
        position = advanced(before.position, step_samples, samples=self.samples, least=batch if self.drops else 1)
        if position.epoch > before.position.epoch:
            return of_members, Assignment.at_start(position.epoch, before.members)
        return of_members, replace(after, position=position)

    def _cut(self, state: Assignment, rank: int, count: int) -> tuple[list[Part], Assignment]:
        """Assigns the next ``count`` rows to one member, from one part or several."""
        parts = []
        while count:
            held = state.held[rank]
            if held is None:
                state = self._with_next(state, rank)
                continue
            middle = min(held.end, held.start + count)
            parts.append(replace(held, end=middle))
            count -= middle - held.start
            state = _holding(state, {rank: replace(held, start=middle) if middle < held.end else None})
        return parts, state

    def _with_next(self, state: Assignment, rank: int) -> Assignment:
        """Assigns the next part to a member that holds no part."""
        # Rests of peers that left come first: otherwise these samples would wait the longest.
        if state.returned:
            return _holding(replace(state, returned=state.returned[1:]), {rank: state.returned[0]})
        if state.handed_out < len(self.lengths):
            number = int(self.order(state.position.epoch)[state.handed_out])
            whole = Part(number, 0, self.lengths[number])
            return _holding(replace(state, handed_out=state.handed_out + 1), {rank: whole if len(whole) else None})
        # No partition is left: splits the longest rest, and among equally long rests the rest of the lowest rank.
        lengths = [0 if one is None else len(one) for one in state.held]
        other = lengths.index(max(lengths))
        part = state.held[other]
        if part is None:
            raise InternalError(f"no rows are left of epoch {state.position.epoch} at {state.position.offset}")
        middle = part.start + len(part) // 2
        kept = replace(part, end=middle) if middle > part.start else None
        return _holding(state, {other: kept, rank: replace(part, start=middle)})


def _holding(state: Assignment, changes: dict[int, Part | None]) -> Assignment:
    return replace(state, held=tuple(changes.get(rank, part) for rank, part in enumerate(state.held)))


@runtime_checkable
class SequentialSource(SampleSource, Protocol):
    """Samples in partitions that are read from their start.

    Args:
        passed: The number of samples read only to reach the position of another peer; counted by the loader's thread.
    """

    passed: int

    def make_sampler(self, seed: int | None, remainder: Remainder) -> Any:
        """Makes the sampler that selects the samples of each step from these partitions."""
        ...

    def read_to(self, indices: NDArray[np.int64]) -> None:
        """Reads up to the first of these samples in each partition, so that `take` returns the samples at once."""
        ...


class PartitionSampler:
    """Selects the rows of each slice from partitions.

    Args:
        seed: The seed that determines, with the epoch, the order in which partitions are handed out.

    On rescale:
        A peer continues with its current partition; see `Partitions`.
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
        """The number of samples of all partitions."""
        return self._partitions.samples

    def make_variable(self, *, most_peers: int) -> tf.Variable:
        """Makes the variable that stores the assignment as part of the state."""
        room = 6 + 4 * max(most_peers, _LEAST_ROOM_FOR) + 3 * _MOST_RETURNED
        self._variable = tf.Variable(tf.zeros([room], tf.int64), trainable=False, name="kungfu/partitions")
        return self._variable

    def reach(self, step_slice: StepSlice, members: Sequence[int]) -> None:
        """Records, in the program's thread, that all peers are at this slice.

        Afterwards ``may_read_long``, equal on all peers, is True if some peer may have to read for long before it has
        its share: because it takes over another peer's partition, or because the view or the batch size has changed,
        and its loader may still work on other data.
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
        """The indices of this peer's rows in the step, counted over all partitions."""
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
        """The assignment at the start of the slice: the stored assignment, or the next assignment after it."""
        row = np.zeros(6, np.int64) if self._variable is None else self._variable.numpy()
        # Nothing is stored yet: the data begin here.
        base, batch = (Assignment.from_row(row[1:]), int(row[0])) if row[4] else (self._base, 0)
        if base.position != step_slice.position and batch:
            base = self._partitions.step(base, batch)[1]
        if base.position != step_slice.position:
            raise InternalError(f"the partitions that peers hold are not known at {step_slice.position}")
        return base
