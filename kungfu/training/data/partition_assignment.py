"""The assignment of partitions of the data to peers, with their positions: a value that all peers compute alike.

A partition is read in sequence by one peer. Partitions of an epoch stand in a shuffled order, and are handed out one
after the other: a peer that has used up its own takes the next one. What a step takes follows from the assignment
before it, the members and the batch, so the peers agree without a message; and one that joins needs that value only.

- A peer joins: it holds nothing, and takes the next partition.
- A peer leaves or is killed: the rest of its partition is handed out before any other, from where the steps that were
  done had come to.
- Nothing is left to hand out: a peer takes the second half of the longest rest that another one holds, so all peers
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
        held: The part that each of them reads; ``None`` for one that takes another next.
        returned: The rests that peers left when they went, in the order of their assignment: a peer that already reads
            to the place in one of them, as peers were lost meanwhile, is given that one again.
        handed_out: The number of partitions of the epoch's order that were assigned.
    """

    position: Position
    members: tuple[int, ...]
    held: tuple[Part | None, ...]
    returned: tuple[Part, ...] = ()
    handed_out: int = 0

    @classmethod
    def at_start(cls, epoch: int, members: Sequence[int]) -> Assignment:
        """The beginning of an epoch: nothing is handed out."""
        return cls(Position(epoch, 0), tuple(members), (None,) * len(members))

    def among(self, members: Sequence[int]) -> Assignment:
        """The same in another view: the parts of peers that left are returned, and new peers hold nothing."""
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

    # ---- as numbers, for a variable that goes along with the state ---------------------------------------------------

    def to_row(self, room: int) -> NDArray[np.int64]:
        """The assignment as ``room`` whole numbers."""
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
        lengths: The rows of each.
        order: The order in which those of an epoch are handed out.
        drops: True if an epoch ends before a step that would be smaller than the others.
    """

    lengths: tuple[int, ...]
    order: Callable[[int], NDArray[np.int64]]
    drops: bool = False

    @classmethod
    def shuffled(cls, lengths: Sequence[int], seed: int | None, *, drops: bool = False) -> Partitions:
        """In an order that follows from the seed and the epoch; without a seed in that of their numbers."""
        return cls(tuple(lengths), lambda epoch: shuffled(len(lengths), seed=seed, epoch=epoch), drops)

    @property
    def samples(self) -> int:
        """Rows of all partitions."""
        return sum(self.lengths)

    @staticmethod
    def begins_within(before: Assignment, of_members: Sequence[Sequence[Part]]) -> bool:
        """True if a member continues in the middle of a partition that it has not read before; as `step` returns it."""
        return any(
            part.start > 0 and (held is None or (held.partition, held.start) != (part.partition, part.start))
            for held, parts in zip(before.held, of_members, strict=True)
            for part in parts
        )

    def step(self, before: Assignment, batch: int) -> tuple[list[list[Part]], Assignment]:
        """The samples of each member in a step of this many samples, and the assignment after it.

        Args:
            before: The assignment at the step's position.
            batch: The samples of the step, fewer where fewer are left of the epoch.
        """
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
        """The next rows of one member, of one part or of several."""
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
        """A member that holds nothing takes what is handed out next."""
        # What a peer that is gone has left comes first: it would be the longest to wait.
        if state.returned:
            return _holding(replace(state, returned=state.returned[1:]), {rank: state.returned[0]})
        if state.handed_out < len(self.lengths):
            number = int(self.order(state.position.epoch)[state.handed_out])
            whole = Part(number, 0, self.lengths[number])
            return _holding(replace(state, handed_out=state.handed_out + 1), {rank: whole if len(whole) else None})
        # Nothing is left to hand out: the longest rest is shared, by the lowest rank where several are as long.
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
