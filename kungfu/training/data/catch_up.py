"""A joiner reads on to where the others are before it says that it is ready, so that nobody waits for its reading.

The others train meanwhile, so it reads on again, to where they are by then. Mostly reading is faster than training, and
what is left becomes less with each round. Where it is not, a short rest is read once the peer is in the view, within
the deadline of a step; a long one would keep all of them waiting, and the peer gives up.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from kungfu.errors import UsageError
from kungfu.runtime.api import Position
from kungfu.training.data.stream import Stream

__all__ = ["ReadAhead", "catch_up"]

# What the others have done in so many seconds is read in a moment.
_SHORT_S = 1.0
# A round that takes more than this part of the one before it tells that the rest does not become less.
_SHRINKS = 0.9
_WORTH_A_REMARK = 2  # batches


@dataclass(frozen=True)
class ReadAhead:
    """What a peer has read before it joined.

    Args:
        batches: That it has no use for, since the others have trained on them.
        seconds: How long that took.
    """

    batches: int
    seconds: float


def catch_up(
    stream: Stream,
    newest: Callable[[], Position | None],
    *,
    meanwhile: Callable[[], None],
    allowed_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> ReadAhead | None:
    """Reads on to where training is.

    Args:
        stream: Data that have to be read from their start.
        newest: Gives the position of those who train, ``None`` where nobody does.
        meanwhile: Called after each batch.
        allowed_s: A rest that takes longer than this would keep the others waiting for too long.
        clock: Seconds that never go back.

    Returns:
        What was read in vain; ``None`` where it is not worth a word.

    Raises:
        UsageError: This peer reads no faster than the others train, and is too far behind them.
    """
    batches, began, before_s = 0, clock(), math.inf
    while (position := newest()) is not None and stream.lacks(position):
        started = clock()
        batches += stream.read_ahead(position, meanwhile=meanwhile)
        took_s = clock() - started
        if took_s <= _SHORT_S:
            # The others have hardly moved on.
            break
        if took_s > _SHRINKS * before_s and took_s <= allowed_s:
            # The rest stays what it is: it is read in the view.
            break
        if took_s > _SHRINKS * before_s:
            raise UsageError(
                f"this peer cannot join: to read what the others have trained on since it began took {took_s:.0f} s, "
                f"as long as before ({before_s:.0f} s), so it reads {stream.what} no faster than they train; give data "
                "by index (arrays, a PyDataset, kf.data), of which a peer reads its own samples only"
            )
        before_s = took_s
    if batches < _WORTH_A_REMARK:
        return None
    found = ReadAhead(batches, clock() - began)
    print(
        f"kungfu: this peer read {batches} batches of {stream.what} in {found.seconds:.1f} s to come to where training "
        "is, as every peer that joins has to; the others trained meanwhile",
        file=sys.stderr,
    )
    return found
