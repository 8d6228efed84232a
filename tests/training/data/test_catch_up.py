"""A peer reads on to its place: before it joins, and where it takes over a partition, however long that takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data.catch_up import DataCursor, await_readers, catch_up
from kungfu.training.data.stream import Stream
from tests.training.peers import on_peers, total_of

BATCH, SAMPLES = 4, 400


class Slow:
    """Data whose batches take ``batch_s`` seconds to read, of which the others do one in ``step_s`` seconds."""

    def __init__(self, batch_s: float, step_s: float, *, at: int) -> None:
        self.batch_s, self.step_s, self.at, self.now_s, self.read = batch_s, step_s, at, 0.0, 0
        self.stream = Stream(self._read, samples=SAMPLES, is_endless=True, what="the data")
        self.meanwhile = 0

    def _read(self, reading: int, at: int) -> tuple[int, Iterator[Any]]:
        def batches() -> Iterator[Any]:
            for start in range(0, 10 * SAMPLES, BATCH):
                self.now_s, self.read = self.now_s + self.batch_s, self.read + 1
                yield np.arange(start, start + BATCH)

        return 0, batches()

    def newest(self) -> Position:
        number = (self.at + int(self.now_s / self.step_s)) * BATCH
        return Position(number // SAMPLES, number % SAMPLES)

    def _count(self) -> None:
        self.meanwhile += 1

    def catch_up(self, newest: Callable[[], Position | None] | None = None) -> Any:
        return catch_up(
            self.stream, newest or self.newest, meanwhile=self._count, allowed_s=20.0, clock=lambda: self.now_s
        )


def test_it_reads_on_until_the_others_have_hardly_moved_on(capsys):
    data = Slow(0.1, 0.4, at=200)
    batches, took_s = data.catch_up()
    behind = data.newest().epoch * SAMPLES + data.newest().offset - data.read * BATCH
    assert behind <= 3 * BATCH, "what is left is read in the view"
    assert batches == data.read - 4, "the last one of each of the four rounds was needed then"
    assert took_s == pytest.approx(data.now_s)
    assert data.meanwhile == data.read, "it says that it is on its way"
    said = rf"this peer read {batches} batches of the data in \d+\.\d s to come to where training is"
    assert re.search(said, capsys.readouterr().err)
    assert data.stream.take(np.arange(data.read * BATCH, data.read * BATCH + 2)).numpy().tolist()


def test_a_rest_that_does_not_become_less_is_read_in_the_view_if_it_is_short():
    data = Slow(0.1, 0.1, at=50)
    assert data.catch_up()[0] < 200
    assert data.now_s < 20.0


def test_a_rest_that_does_not_become_less_and_is_long_is_an_error():
    data = Slow(1.0, 1.0, at=50)
    with pytest.raises(UsageError, match=r"so it reads the data no faster than they train; give data by index"):
        data.catch_up()


def test_the_end_of_the_data_ends_it():
    ended = Stream(
        lambda reading, at: (0, iter([np.arange(4), np.arange(4, 8)])), samples=8, is_endless=True, what="the data"
    )
    found = catch_up(ended, lambda: Position(1, 0), meanwhile=lambda: None, allowed_s=1.0)
    assert found is not None
    assert found[0] == 2


def test_nothing_is_read_where_nobody_trains_or_the_data_can_be_read_from_any_place():
    data = Slow(1.0, 1.0, at=50)
    assert data.catch_up(lambda: None) is None
    data.stream.can_seek = True
    assert data.catch_up() is None
    assert not data.read


def test_a_peer_that_waits_at_the_door_reads_on_with_the_others():
    data, asked = Slow(0.1, 0.4, at=0), list[int]()

    class Others:
        report_reading = data._count

        def of_others(self, phase: int, *, within_s: float) -> Position | None:
            assert within_s <= 1.0, "others may wait for this peer meanwhile"
            asked.append(phase)
            return Position(0, data.at * BATCH) if data.at else None

    cursor = DataCursor(SimpleNamespace(data_position=Others()), None)
    cursor.keep_up(phase=1)
    assert not asked, "data by index"
    cursor.follow(data.stream)
    for at, read in ((0, 0), (50, 51), (60, 61), (60, 61)):
        data.at, cursor._kept_up = at, 0.0
        cursor.keep_up(phase=2)
        cursor.keep_up(phase=2)
        assert data.read == read, "up to the first batch that the others have not trained on"
    assert asked == [2] * 4, "at most once a second"
    assert data.stream.take(np.arange(60 * BATCH, 61 * BATCH)).numpy().tolist() == [*range(240, 244)]


# ---- a peer that takes over a partition ------------------------------------------------------------------------------


def test_a_peer_that_reads_is_waited_for_by_one_message_after_the_other(capsys):
    """However long it takes, no message waits for longer than a part of any deadline."""
    rounds, now_s = 20, [0.0] * 3

    def run(rank: int, attachment: LocalAttachment) -> tuple[float, list[float]]:
        told: list[float] = []

        def is_loaded(within_s: float) -> bool:
            told.append(within_s)
            now_s[rank] += within_s
            return rank != 1 or len(told) > rounds

        return await_readers(is_loaded, total_of(attachment), clock=lambda: now_s[rank]), told

    found = on_peers(3, run)
    assert [told for _, told in found] == [[0.5] * (rounds + 1)] * 3
    assert [took_s for took_s, _ in found] == [0.5, 0.5 * (rounds + 1), 0.5]
    said = "this peer takes over a part of the data that is read from its start, and reads to its place there; the oth"
    assert capsys.readouterr().err.count(said) == 1


def test_peers_that_have_read_all_send_one_message():
    sent: list[list[int]] = []

    def total(tensors: Any) -> Any:
        sent.append([int(one) for one in tensors[0]])
        return tensors

    assert await_readers(lambda within_s: True, total, clock=lambda: 3.0) == 0.0
    assert sent == [[0]]

    def run(rank: int, attachment: LocalAttachment) -> str:
        if rank == 1:
            attachment.leave()
            return ""
        with pytest.raises(tf.errors.OpError) as caught:
            await_readers(lambda within_s: True, total_of(attachment))
        return str(attachment.failure_of(caught.value))

    assert "rank=1 left" in on_peers(2, run)[0]
