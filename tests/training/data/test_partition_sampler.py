"""Samples of partitions over peers that join, leave and are lost, with the assignment in a variable."""

from __future__ import annotations

import numpy as np
import pytest

from kungfu.errors import InternalError
from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data.partition_sampler import PartitionSampler
from kungfu.training.data.sampler import StepSlice


def peer() -> PartitionSampler:
    one = PartitionSampler([5, 0, 8, 7], 3)
    one.make_variable(most_peers=4)
    return one


def test_all_peers_know_before_a_step_that_one_may_have_to_read_to_its_place() -> None:
    """In a new view, with another batch, and where a peer goes on in the middle of another one's partition."""
    peers, position = {number: peer() for number in range(3)}, Position(0, 0)
    members, version, batch, told, expected = [0, 1, 2], 1, 3, [], []
    starts, read = {0, 5, 13}, {number: set[int]() for number in range(3)}
    for turn in range(7):
        if turn == 2:  # one of them is gone
            members, version = [0, 2], 2
        if turn == 4:
            batch = 2
        found, takes_over = [], False
        for rank, number in enumerate(members):
            slice_ = StepSlice(position, version, len(members), rank, batch)
            for _ in range(2):  # further micro-batches change nothing
                peers[number].reach(slice_, members)
            found.append(peers[number].may_read_long)
            share = set(peers[number].indices(slice_).tolist())
            takes_over |= any(row - 1 not in read[number] | share for row in share - starts)
            read[number] |= share
        assert len(set(found)) == 1
        told.append(found[0])
        expected.append(turn in (0, 2, 4) or takes_over)
        position = StepSlice(position, version, len(members), 0, batch).after(20).position
    assert position.epoch == 0
    assert told == expected
    assert {*told} == {True, False}


def test_one_peer_alone_reads_one_partition_after_the_other():
    one = peer()
    ends = np.flatnonzero(np.diff(one.order(1)) != 1) + 1
    assert sorted(one.order(1).tolist()) == list(range(20))
    assert len(ends) <= 2
    assert one.order(0).tolist() != one.order(1).tolist()


def test_a_resumed_run_continues_from_the_variable():
    one, other = peer(), peer()
    slice_ = StepSlice(Position(0, 0), 1, 1, 0, 6)
    one.reach(slice_, [0])
    after = slice_.after(one.samples)
    one.reach(after, [0])
    other.reach(slice_, [0])
    other._variable.assign(one._variable)
    for position in (after.position, after.after(one.samples).position):
        again = StepSlice(position, 1, 1, 0, 6)
        one.reach(again, [0])
        other.reach(again, [0])
        np.testing.assert_array_equal(one.indices(again), other.indices(again))
    with pytest.raises(InternalError, match="the partitions that peers hold are not known at"):
        one.reach(StepSlice(Position(7, 3), 1, 1, 0, 6), [0])
    with pytest.raises(InternalError, match=r"a batch at .* was cut, and the peers are at"):
        one.indices(StepSlice(Position(7, 3), 1, 1, 0, 6))


def test_the_variable_has_one_size_whatever_the_job_may_grow_to():
    """A checkpoint of a small job is resumed by one that may be larger."""
    small, large, huge = (PartitionSampler([5, 8], 3).make_variable(most_peers=most) for most in (1, 64, 1000))
    assert small.shape == large.shape
    assert huge.shape[0] > 4 * 1000
