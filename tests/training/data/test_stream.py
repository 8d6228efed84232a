"""Data that is read forward only, by every peer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kungfu.errors import UsageError
from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data.batch_plan import BatchPlan
from kungfu.training.data.sampler import StepSlice
from kungfu.training.data.stream import DataEndedError, Stream, StreamSampler


class Read:
    """Batches of 4 of numbers, those of reading ``r`` above ``100 r``; counts what is read."""

    def __init__(self, *lengths: int) -> None:
        self.lengths, self.readings, self.batches = lengths, 0, 0

    def __call__(self, reading: int, at: int) -> tuple[int, Iterator[Any]]:
        assert reading == self.readings, "each of them is begun"
        self.readings += 1
        return 0, self._read(100 * reading)

    def _read(self, begin: int) -> Iterator[Any]:
        for length in self.lengths:
            self.batches += 1
            yield {"x": np.arange(begin, begin + length)}
            begin += length


def taken(stream: Stream, first: int, count: int) -> list[int]:
    return stream.take(np.arange(first, first + count))["x"].numpy().tolist()


def stream(read: Any, *, samples: int, is_endless: bool = False, **given: Any) -> Stream:
    return Stream(read, samples=samples, is_endless=is_endless, what="the data", **given)


def test_slices_are_cut_across_batches_and_cut_again_until_the_position_has_moved_on():
    one = stream(Read(4, 4, 2), samples=10)
    assert taken(one, 3, 4) == [3, 4, 5, 6]
    assert taken(one, 0, 2) == [0, 1]
    one.reach(Position(0, 5))
    assert taken(one, 5, 5) == [5, 6, 7, 8, 9]
    with pytest.raises(UsageError, match="the data: sample 0 was asked for again"):
        taken(one, 0, 1)


def test_each_epoch_is_a_reading_of_its_own_and_a_joiner_begins_as_many():
    read = Read(4, 4, 2)
    one = stream(read, samples=10)
    assert taken(one, 8, 2) == [8, 9]
    assert taken(one, 10, 2) == [100, 101]
    joiner = Read(4, 4, 2)
    other = stream(joiner, samples=10)
    other.reach(Position(3, 6))
    assert taken(other, 36, 2) == [306, 307]
    assert (joiner.readings, joiner.batches) == (4, 3 + 2), "the beginning of those before, and no more of them"


def test_only_what_may_be_asked_for_again_is_kept():
    one = stream(Read(*[4] * 1000), samples=4000)
    one.reach(Position(0, 3996))
    taken(one, 3996, 4)
    assert len(one._chunks) == 1


def test_a_reading_that_gives_less_is_an_error_and_one_that_gives_more_is_cut():
    class Shrinking(Read):
        def __call__(self, reading: int, at: int) -> tuple[int, Iterator[Any]]:
            self.lengths = (4, 4, 4) if reading == 0 else (4,)
            return super().__call__(reading, at)

    one = stream(Shrinking(), samples=10)
    assert taken(one, 8, 2) == [8, 9]
    assert taken(one, 10, 4) == [100, 101, 102, 103]
    with pytest.raises(UsageError, match=r"the data ended after 4 samples of 10: .* say steps_per_epoch"):
        taken(one, 14, 1)


def test_a_joiner_begins_at_its_place_where_data_can_be_read_from_any():
    begun = []

    def read(reading: int, at: int) -> tuple[int, Iterator[Any]]:
        begun.append((reading, at))
        first = at // 4 * 4
        return first, ({"x": np.arange(start, start + 4)} for start in range(first, 1000, 4))

    one = stream(read, samples=40, is_endless=True, can_seek=True, checksum=lambda batch: batch["x"][0])
    assert taken(one, 0, 6) == list(range(6)), "the batch that it traces with"
    one.reach(Position(2, 10))
    assert taken(one, 91, 3) == [91, 92, 93]
    assert begun == [(0, 0), (0, 90)]
    assert taken(one, 94, 6) == list(range(94, 100))
    assert begun == [(0, 0), (0, 90)], "and reads on from there"
    assert one.first_batch_of(2) == 80, "which it has passed over"
    assert one.first_batch_of(1) is None, "data that shuffle themselves are past that epoch"


def test_what_an_epoch_begins_with_is_known_to_all_who_have_read_it():
    one = stream(Read(*[4] * 9), samples=10, is_endless=True, checksum=lambda batch: int(batch["x"][0]))
    assert one.first_batch_of(0) is None
    taken(one, 8, 4)
    assert [one.first_batch_of(epoch) for epoch in (0, 1, 2)] == [0, 8, None], "also where it begins within a batch"
    assert stream(Read(4), samples=4).first_batch_of(0) is None


def test_a_peer_that_reads_what_others_trained_on_says_what_it_took(capsys):
    one = stream(Read(*[4] * 10), samples=40)
    one.reach(Position(0, 32))
    assert taken(one, 32, 4) == [32, 33, 34, 35]
    told = capsys.readouterr().err
    assert re.search(r"this peer read 8 batches of the data in \d+\.\d s to come to where training is", told)
    taken(one, 36, 4)
    assert not capsys.readouterr().err


def test_an_error_of_the_data_is_the_same_when_they_are_asked_again():
    def failing() -> Iterator[Any]:
        yield {"x": np.arange(4)}
        raise OSError("disk gone")

    one = stream(lambda reading, at: (0, failing()), samples=40, is_endless=True)
    for _ in range(2):
        with pytest.raises(OSError, match="disk gone"):
            taken(one, 2, 4)
    assert taken(one, 2, 2) == [2, 3]


def test_data_that_end_early_end_at_the_same_step_for_every_peer():
    for rank in range(2):
        one, sampler = stream(Read(4, 4, 2), samples=40, is_endless=True), StreamSampler(40)
        plan = BatchPlan(one, sampler, 8, 1)
        assert len(plan.load(plan.micro_batch(StepSlice(Position(0, 0), 1, 2, rank, 8)))["x"]) == 4
        with pytest.raises(DataEndedError, match="the data ended after 10 samples of 40"):
            plan.load(plan.micro_batch(StepSlice(Position(0, 8), 1, 2, rank, 4)))


def test_the_samples_of_a_step_follow_one_another_over_peers_and_epochs():
    sampler, found = StreamSampler(10), []
    step = StepSlice(Position(2, 4), version=1, size=3, rank=0, global_batch_size=4)
    for rank in range(3):
        found += sampler.indices(StepSlice(step.position, 1, 3, rank, 4)).tolist()
    assert found == [24, 25, 26, 27]
    assert step.largest_share(10) == 2
    assert step.after(10).after(10).position == Position(3, 0)
