"""Data that is read forward only, by every peer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kungfu.errors import UsageError
from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data.sampler import StepSlice
from kungfu.training.data.stream import Stream, StreamSampler


class Read:
    """Batches of 4 of numbers, those of reading ``r`` above ``100 r``; counts what is read."""

    def __init__(self, *lengths: int) -> None:
        self.lengths, self.readings, self.batches = lengths, 0, 0

    def __call__(self) -> Iterator[Any]:
        begin, self.readings = 100 * self.readings, self.readings + 1
        return self._read(begin)

    def _read(self, begin: int) -> Iterator[Any]:
        for length in self.lengths:
            self.batches += 1
            yield {"x": np.arange(begin, begin + length)}
            begin += length


def taken(stream: Stream, first: int, count: int) -> list[int]:
    return stream.take(np.arange(first, first + count))["x"].numpy().tolist()


def stream(read: Read, *, samples: int, is_endless: bool = False) -> Stream:
    return Stream(read, samples=samples, is_endless=is_endless, what="the data")


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


def test_one_reading_goes_on_over_the_epochs():
    one = stream(Read(*[4] * 10), samples=12, is_endless=True)
    assert taken(one, 10, 4) == [10, 11, 12, 13]
    one.reach(Position(2, 0))
    assert taken(one, 24, 3) == [24, 25, 26]


def test_only_what_may_be_asked_for_again_is_kept():
    one = stream(Read(*[4] * 1000), samples=4000)
    one.reach(Position(0, 3996))
    taken(one, 3996, 4)
    assert len(one._chunks) == 1


def test_a_reading_that_gives_less_is_an_error_and_one_that_gives_more_is_cut():
    class Shrinking(Read):
        def __call__(self) -> Iterator[Any]:
            self.lengths = (4, 4, 4) if self.readings == 0 else (4,)
            return super().__call__()

    one = stream(Shrinking(), samples=10)
    assert taken(one, 8, 2) == [8, 9]
    assert taken(one, 10, 4) == [100, 101, 102, 103]
    with pytest.raises(UsageError, match=r"the data ended after 4 samples of 10: .* say steps_per_epoch"):
        taken(one, 14, 1)


def test_the_samples_of_a_step_follow_one_another_over_peers_and_epochs():
    sampler, found = StreamSampler(10), []
    step = StepSlice(Position(2, 4), version=1, size=3, rank=0, global_batch_size=4)
    for rank in range(3):
        found += sampler.indices(StepSlice(step.position, 1, 3, rank, 4)).tolist()
    assert found == [24, 25, 26, 27]
    assert sampler.largest_share(step) == 2
    assert sampler.after(sampler.after(step)).position == Position(3, 0)
