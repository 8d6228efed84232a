"""Lets a peer catch up with the others in data that are read from their start, however long this takes.

*A joiner* reads up to the position of the other peers before it reports itself ready, so that no peer waits for its
reading. The other peers train meanwhile, so the joiner reads on to their new position, and so on. Usually reading is
faster than training, and the distance shrinks with each round. If it does not, the joiner reads a short distance once
it is in the view, within the deadline of a step. A long distance would keep all peers waiting: the joiner gives up.
While the joiner, or a spare, waits to be admitted, it reads on as the others train.

*A peer that takes over a partition* is in a view, and its share of the next step begins in the middle of that
partition. All peers compute the new assignment, so they know beforehand that some peer may have to read for long.
Before that step all peers wait, and inform each other twice a second whether they are still reading, until no peer is.
Each message arrives in time, so no deadline declares a reader lost; a peer that is killed, or whose process is stopped,
is noticed as in a step. Other steps have no such exchange.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import Membership, Position
from kungfu.training.data.partition_sampler import SequentialSource
from kungfu.training.data.sample_source import SampleSource
from kungfu.training.data.stream import Stream
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.step_report import StepPosition, read_position

if TYPE_CHECKING:
    from kungfu.training.state.registered_sync import PeerGroup

# The data of the steps that the other peers do in this time can be read almost at once.
_SHORT_S = 1.0
# A round longer than this fraction of the previous round shows that the distance no longer shrinks.
_SHRINKS = 0.9
_WORTH_A_REMARK = 2  # batches
_REPORT_EVERY_S = 0.5
_KEEP_UP_EVERY_S = 1.0
# After this time the reason for the wait is printed.
_REMARK_AFTER_S = 2.0
_WORTH_AN_EVENT_S = 1.0


def catch_up(
    stream: Stream,
    newest: Callable[[], Position | None],
    *,
    meanwhile: Callable[[], None],
    allowed_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[int, float] | None:
    """Reads a stream up to the position of training.

    Args:
        newest: Returns the position of the peers that train; ``None`` if no peer trains.
        allowed_s: The most seconds for which this peer may read after it has joined, while the other peers wait.

    Returns:
        The number of batches read without use, and the seconds spent; ``None`` if the batches are too few to report.

    Raises:
        UsageError: This peer reads no faster than the others train, and is too far behind.
    """
    batches, began, before_s = 0, clock(), math.inf
    while (position := newest()) is not None and stream.lacks(position):
        started = clock()
        batches += stream.read_ahead(position, meanwhile=meanwhile)
        took_s = clock() - started
        if took_s <= _SHORT_S:
            # The other peers have hardly advanced.
            break
        if took_s > _SHRINKS * before_s and took_s <= allowed_s:
            # The distance does not shrink: the rest is read in the view.
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
    took_s = clock() - began
    print(
        f"kungfu: this peer read {batches} batches of {stream.what} in {took_s:.1f} s to come to where training "
        "is, as every peer that joins has to; the others trained meanwhile",
        file=sys.stderr,
    )
    return batches, took_s


def await_readers(
    is_loaded: Callable[[float], bool],
    total: Callable[[Sequence[Any]], Sequence[Any]],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Waits between two steps until every peer has its next batch; returns the seconds that this peer spent reading.

    Args:
        is_loaded: Waits at most the given number of seconds, and returns True if this peer has its batch.

    Raises:
        OpError: A peer was lost meanwhile.

    Cost:
        A message of 8 bytes, and another message for each half second that a peer reads.
    """
    began, took_s, has_remarked, readers = clock(), math.nan, False, 1
    while readers:
        is_reading = not is_loaded(_REPORT_EVERY_S)
        if not is_reading and math.isnan(took_s):  # this peer is done; other peers may still read
            took_s = clock() - began
        if is_reading and not has_remarked and clock() - began > _REMARK_AFTER_S:
            has_remarked = True
            print(
                "kungfu: this peer takes over a part of the data that is read from its start, and reads to its place "
                "there; the others wait for it",
                file=sys.stderr,
            )
        readers = int(total([tf.constant([int(is_reading)], tf.int64)])[0][0])
    return took_s


class DataCursor:
    """Tracks one peer's position in the data of its run, and lets the peer catch up; idle for data loaded by index."""

    def __init__(self, membership: Membership, graph_state: GraphState) -> None:
        self._others, self._graph_state = membership.data_position, graph_state
        self._stream: Stream | None = None  # data that every peer reads
        self._newest: Position | None = None  # the position in the stream, as offered to joiners
        self._partitions: SequentialSource | None = None  # data whose partitions pass from peer to peer
        self._kept_up = 0.0  # the time of the last request of the others' position, as this peer waited
        self._recorded = 0  # the number of passed samples that need no event: recorded already, or read at once

    def follow(self, source: SampleSource) -> None:
        """Tracks the run's position in a source from now on; does nothing if the source loads samples by index."""
        if isinstance(source, Stream):
            self._stream = source
        if isinstance(source, SequentialSource):
            self._partitions = source

    def reached(self, position: StepPosition) -> None:
        """Records the position after a step; joiners request it if every peer reads all of the data."""
        if self._stream is not None:
            self._newest = Position(position.epoch, position.offset)

    def catch_up(self, *, phase: int) -> None:
        """Reads up to the current position of training, before this peer joins and other peers wait for it."""
        others, here = self._others, read_position(self._graph_state)  # ``here``: the position of a resumed run
        if self._stream is None or others is None:
            return
        others.local.publish(lambda: self._newest)

        def newest() -> Position:
            theirs = others.of_others(max(1, phase)) or Position(0, 0)
            return max(theirs, Position(here.epoch, here.offset), key=lambda one: (one.epoch, one.offset))

        found = catch_up(self._stream, newest, meanwhile=others.report_reading, allowed_s=others.allowed_s)
        if found is not None:
            others.log_caught_up(*found)

    def keep_up(self, *, phase: int) -> None:
        """Reads on to the current position of training while this peer waits to be admitted, at most once a second.

        A spare may wait for hours: without this, all peers would wait for its reading once it is admitted.
        """
        stream, others, now = self._stream, self._others, time.monotonic()
        if stream is None or others is None or now - self._kept_up < _KEEP_UP_EVERY_S:
            return
        self._kept_up = now
        # A frozen peer must not delay the admission of this peer.
        position = others.of_others(max(1, phase), within_s=_KEEP_UP_EVERY_S)
        if position is not None and stream.lacks(position):
            stream.read_ahead(position, meanwhile=others.report_reading)

    def await_others(
        self, is_loaded: Callable[[float], bool], *, exchange: Callable[[Callable[[PeerGroup], None]], bool]
    ) -> bool:
        """Waits until all peers have their batch (see `await_readers`); returns False if peers were lost meanwhile."""
        took_s = 0.0

        def await_all(peers: PeerGroup) -> None:
            nonlocal took_s
            if peers.size > 1:  # with one peer no other peer waits
                took_s = await_readers(is_loaded, peers.total)

        is_done = exchange(await_all)
        if self._partitions is not None:  # reading may have kept the others waiting, or ended before they waited
            passed, self._recorded = self._partitions.passed - self._recorded, self._partitions.passed
            if passed and took_s > _WORTH_AN_EVENT_S and self._others is not None:
                self._others.log_took_over(passed, took_s)
        return is_done
