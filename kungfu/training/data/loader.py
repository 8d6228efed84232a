"""The loader: batches of this peer's share, cut at the agreed position, each with the stamp that the step checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import Position
from kungfu.training.data.feed import Feed, Piece
from kungfu.training.data.order import Turn
from kungfu.training.data.prefetch import Prefetch
from kungfu.training.data.stamps import Stamps
from kungfu.training.graph.account import Where

__all__ = ["batches"]


def batches(
    feed: Feed,
    where: Callable[[], Where],
    stamps: Stamps,
    *,
    over: Callable[[], bool],
    calls: Callable[[], int],
    most_peers: int,
) -> Iterator[Any]:
    """Yields what one call of the step after the other needs, until the epochs are done or training is ``over``.

    ``where`` says where the run is. ``calls`` counts the calls of the step: a batch that was not given to it would come
    back for ever. Before this peer is in a view, its batch only serves to trace and warm up; it is as small as with
    ``most_peers`` peers.
    """
    before, last = -1, None
    with closing(Prefetch(feed.load, following=feed.following)) as ahead:
        while not over():
            here = where()
            turn = _turn(feed, here, most_peers=most_peers)
            if turn.position.epoch >= feed.epochs:
                return
            if calls() == before:
                raise UsageError(
                    "a batch of training.batches() was not given to the function marked @training.step: "
                    "the loader follows the steps that were done, so every batch must become one"
                )
            last, started = _next(feed, here, turn, last), before >= 0
            before = calls()
            batch = ahead.get(last)
            stamps.put(tf.nest.flatten(batch), feed.stamp(last))
            if started:  # after the first batch the view is another one: nothing can be guessed from it
                ahead.run_ahead(last)
            yield batch


def _turn(feed: Feed, here: Where, *, most_peers: int) -> Turn:
    return Turn(
        Position(here.epoch, here.offset),
        version=here.version,
        size=here.size if here.version else most_peers,
        rank=here.rank,
        global_batch_size=here.global_batch_size or feed.batch_size,
    )


def _next(feed: Feed, here: Where, turn: Turn, last: Piece | None) -> Piece:
    """The next micro-batch of the turn; from its first one where the turn is new, or was cut anew."""
    same = last is not None and last.turn == turn
    return feed.piece(turn, micro=here.micro if same else 0)
