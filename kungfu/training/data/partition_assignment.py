"""Assigns partitions of the data, with positions in them, to peers; all peers compute the same assignment.

Each partition is read in sequence by one peer. The partitions of an epoch are handed out in a shuffled order: a peer
that has finished its partition receives the next one. The samples of a step follow from the assignment before it, the
members and the batch size, so the peers agree without a message, and a joiner needs only that value.

- A peer joins: it holds nothing, and receives the next partition.
- A peer leaves or is lost: the rest of its partition is handed out before any other, from the position of the finished
  steps.
- No partition is left: a peer receives the second half of the longest rest that another peer holds, so all peers
  have their share of every step until the epoch ends.

Reference:
    Wu et al., *Elastic deep learning in multi-tenant GPU cluster*, section 5.3, where a leader hands them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kungfu.errors import InternalError
from kungfu.runtime.api import Position, advanced, shuffled, spread


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
        position: The position.
        members: The ids of the peers, in the order of their ranks.
        held: The part that each peer reads; ``None`` for a peer that receives another part next.
        returned: The rests of peers that left, in the order of their assignment. A peer that has already read to the
            start of a rest, since peers were lost meanwhile, receives that rest again.
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
        """The assignment in another view: parts of peers that left are returned, and new peers hold nothing."""
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
        """The assignment as ``room`` integers."""
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
        order: The order in which the partitions of an epoch are handed out.
        drops: True if an epoch ends before a step that would be smaller than the others.
    """

    lengths: tuple[int, ...]
    order: Callable[[int], NDArray[np.int64]]
    drops: bool = False

    @classmethod
    def shuffled(cls, lengths: Sequence[int], seed: int | None, *, drops: bool = False) -> Partitions:
        """Partitions in an order derived from the seed and the epoch; without a seed in the order of their numbers."""
        return cls(tuple(lengths), lambda epoch: shuffled(len(lengths), seed=seed, epoch=epoch), drops)

    @property
    def samples(self) -> int:
        """The number of rows of all partitions."""
        return sum(self.lengths)

    @staticmethod
    def begins_within(before: Assignment, of_members: Sequence[Sequence[Part]]) -> bool:
        """True if a member's part begins inside a partition that it did not read before, in the result of `step`."""
        return any(
            part.start > 0 and (held is None or (held.partition, held.start) != (part.partition, part.start))
            for held, parts in zip(before.held, of_members, strict=True)
            for part in parts
        )

    def step(self, before: Assignment, batch: int) -> tuple[list[list[Part]], Assignment]:
        """The samples of each member in a step of at most ``batch`` samples, and the assignment after it."""
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
        """Takes the next rows for one member, from one part or several."""
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
        """Gives the next part to a member that holds none."""
        # Rests of peers that left come first: otherwise they would wait the longest.
        if state.returned:
            return _holding(replace(state, returned=state.returned[1:]), {rank: state.returned[0]})
        if state.handed_out < len(self.lengths):
            number = int(self.order(state.position.epoch)[state.handed_out])
            whole = Part(number, 0, self.lengths[number])
            return _holding(replace(state, handed_out=state.handed_out + 1), {rank: whole if len(whole) else None})
        # No partition is left: splits the longest rest; of equally long ones, that of the lowest rank.
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
