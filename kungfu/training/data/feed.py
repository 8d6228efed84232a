"""The data of a run and how it is walked: source, order, batch size, epochs, and the cut into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from kungfu.errors import UsageError
from kungfu.runtime.api import Stamp
from kungfu.training.data.order import Order, Remainder, SerialOrder, Turn
from kungfu.training.data.source import Source, as_source

__all__ = ["Feed", "Piece", "Remainder", "checked_feed"]


@dataclass(frozen=True)
class Piece:
    """What one call of the step is given: number ``micro`` of ``micros`` micro-batches of a turn."""

    turn: Turn
    micro: int = 0
    micros: int = 1


@dataclass(frozen=True)
class Feed:
    """``batch_size`` is that of the whole job at its start; a peer's share above ``max_local_batch_size`` is cut."""

    source: Source
    order: Order
    batch_size: int
    epochs: int
    remainder: Remainder = "keep"
    max_local_batch_size: int | None = None

    def piece(self, turn: Turn, *, micro: int = 0) -> Piece:
        """A micro-batch of a turn. All peers have as many of them, by the largest share among the peers."""
        most = self.max_local_batch_size
        return Piece(turn, micro, 1 if most is None else max(1, -(-self.order.largest_share(turn) // most)))

    def following(self, piece: Piece) -> Piece | None:
        """What comes behind a piece if nothing changes; ``None`` at the end of the last epoch."""
        if piece.micro + 1 < piece.micros:
            return replace(piece, micro=piece.micro + 1)
        after = self.order.after(piece.turn)
        return None if after.position.epoch >= self.epochs else self.piece(after)

    def indices(self, piece: Piece) -> NDArray[np.int64]:
        """The samples of a piece: this peer's share is used up from its start, so the last pieces may be empty."""
        share, most = self.order.indices(piece.turn), self.max_local_batch_size
        return share if most is None else share[piece.micro * most : (piece.micro + 1) * most]

    def stamp(self, piece: Piece) -> Stamp:
        """What the step is to know of a piece."""
        position, empty = piece.turn.position, not len(self.indices(piece))
        return Stamp(position.epoch, position.offset, piece.turn.version, piece.micro, piece.micros, empty)

    def load(self, piece: Piece) -> Any:
        """The tensors of a piece; where it is empty, of one sample of the job's step: layers need something to run on.

        An error of the user's loading says which samples it was about.
        """
        indices = self.indices(piece)
        if not len(indices):  # rank 0 has the largest share, so it has a sample
            indices = self.order.indices(replace(piece.turn, rank=0))[:1]
        try:
            return self.source.take(indices)
        except Exception as error:
            position = piece.turn.position
            error.add_note(
                f"training.batches(): while loading {len(indices)} samples with indices between {indices.min()} and "
                f"{indices.max()} (the first is {indices[0]}), for the step at sample {position.offset} of epoch "
                f"{position.epoch}"
            )
            raise


def checked_feed(
    data: Any,
    *,
    batch_size: int,
    epochs: int,
    seed: int,
    samples: int | None = None,
    load: Callable[[Any], Any] | None = None,
    remainder: Remainder = "keep",
    max_local_batch_size: int | None = None,
) -> Feed:
    """What ``training.batches`` was asked for, or a ``UsageError`` that says what is wrong with it."""
    source = as_source(data, load=load, samples=samples)
    numbers = [("batch_size", batch_size, 1), ("epochs", epochs, 0), ("seed", seed, 0)]
    if max_local_batch_size is not None:
        numbers.append(("max_local_batch_size", max_local_batch_size, 1))
    for name, value, least in numbers:
        if not isinstance(value, int | np.integer) or value < least:
            raise UsageError(f"training.batches({name}={value!r}): must be an integer of at least {least}")
    if batch_size > source.samples:
        raise UsageError(f"training.batches(batch_size={batch_size}): the data has only {source.samples} samples")
    if remainder not in get_args(Remainder):
        raise UsageError(f"training.batches(remainder={remainder!r}): must be one of {', '.join(get_args(Remainder))}")
    order = SerialOrder(source.samples, int(seed), remainder)
    return Feed(source, order, int(batch_size), int(epochs), remainder, max_local_batch_size)
