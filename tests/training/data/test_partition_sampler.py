"""Who reads which partition: each row once an epoch over any history, few partitions a peer, and the variable."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import InternalError
from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data.partition_sampler import Assignment, Part, Partitions, PartitionSampler
from kungfu.training.data.sampler import StepSlice

views = st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True)
steps = st.lists(st.tuples(views, st.integers(1, 30), st.booleans()), min_size=1, max_size=12)


def rows(of_members: list[list[Part]]) -> list[tuple[int, int]]:
    return [(part.partition, row) for parts in of_members for part in parts for row in range(part.start, part.end)]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), steps, st.sampled_from([None, 3]))
def test_each_row_comes_once_an_epoch_over_joins_leaves_batches_and_steps_done_again(
    lengths: list[int], history: list[tuple[list[int], int, bool]], seed: int | None
) -> None:
    partitions = Partitions.shuffled(lengths, seed)
    if not partitions.samples:
        return
    every = {(number, row) for number, length in enumerate(lengths) for row in range(length)}
    state, seen, turn = Assignment.at_start(0, history[0][0]), Counter[tuple[int, int]](), 0
    while state.position.epoch < 2:
        members, batch, is_done = history[turn % len(history)]
        turn += 1
        state = Assignment.from_row(state.among(members).to_row(300))  # as a peer that joins is given it
        of_members, after = partitions.step(state, batch)
        taken = rows(of_members)
        counts = [sum(map(len, parts)) for parts in of_members]
        assert sum(counts) == min(batch, partitions.samples - state.position.offset)
        assert max(counts) - min(counts) <= 1
        if not is_done and turn % len(history):  # peers were lost over it; some step of a history has to be done
            continue
        seen.update(taken)
        if after.position.epoch > state.position.epoch:
            assert seen == dict.fromkeys(every, 1)
            seen.clear()
        state = after


def test_a_joiner_takes_the_next_partition_and_a_leavers_rest_comes_first() -> None:
    partitions = Partitions.shuffled([10, 10, 10, 10, 10], None)
    start = Assignment.at_start(0, [7, 8])
    of_members, after = partitions.step(start, 8)
    assert of_members == [[Part(0, 0, 4)], [Part(1, 0, 4)]]
    of_members, after = partitions.step(after.among([7, 8, 9]), 6)
    assert of_members == [[Part(0, 4, 6)], [Part(1, 4, 6)], [Part(2, 0, 2)]]
    left = after.among([9, 7])
    assert left.held == (Part(2, 2, 10), Part(0, 6, 10))
    assert left.returned == (Part(1, 6, 10),)
    of_members, after = partitions.step(left, 12)
    assert of_members == [[Part(2, 2, 8)], [Part(0, 6, 10), Part(1, 6, 8)]]
    assert after.position == Position(0, 26)


def test_a_peer_that_reads_to_its_place_is_given_that_part_again_after_a_loss() -> None:
    partitions = Partitions.shuffled([10] * 6, None)
    _, after = partitions.step(Assignment.at_start(0, [7, 8, 9]), 12)
    left = after.among([8, 9]).among([9])
    assert left.returned == (Part(0, 4, 10), Part(1, 4, 10)), "in the order in which they were returned"


def test_when_nothing_is_left_to_hand_out_the_longest_rest_is_shared() -> None:
    partitions = Partitions.shuffled([3, 9], None)
    of_members, after = partitions.step(Assignment.at_start(0, [0, 1]), 8)
    assert of_members == [[Part(0, 0, 3), Part(1, 0, 1)], [Part(1, 5, 9)]]
    of_members, after = partitions.step(after, 8)
    assert of_members == [[Part(1, 1, 3)], [Part(1, 4, 5), Part(1, 3, 4)]]
    assert after == Assignment.at_start(1, [0, 1])


def test_an_order_by_seed_differs_by_epoch_and_a_remainder_may_be_dropped() -> None:
    partitions = Partitions.shuffled([1] * 20, 3)
    assert partitions.order(0).tolist() != partitions.order(1).tolist()
    dropping = Partitions.shuffled([5, 5], None, drops=True)
    assert dropping.step(Assignment.at_start(0, [0]), 6)[1] == Assignment.at_start(1, [0])


def test_more_than_the_numbers_hold_is_an_error() -> None:
    state = Assignment(Position(0, 0), (0,), (None,), tuple(Part(0, row, row + 1) for row in range(9)))
    assert Assignment.from_row(state.to_row(40)) == state
    assert state.to_row(40).dtype == np.int64
    with pytest.raises(InternalError, match="9 parts of partitions were returned"):
        state.to_row(20)


# ---- the sampler, with the assignment in a variable ------------------------------------------------------------------


def peer() -> PartitionSampler:
    one = PartitionSampler([5, 0, 8, 7], 3)
    one.make_variable(most_peers=4)
    return one


def test_all_peers_know_before_a_step_that_one_may_have_to_read_to_its_place() -> None:
    """In a new view, with another batch, and where a peer goes on in the middle of another one's partition."""
    peers, position = {number: peer() for number in range(3)}, Position(0, 0)
    members, version, batch, noticed, expected = [0, 1, 2], 1, 3, [], []
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
        noticed.append(found[0])
        expected.append(turn in (0, 2, 4) or takes_over)
        position = StepSlice(position, version, len(members), 0, batch).after(20).position
    assert position.epoch == 0
    assert noticed == expected
    assert {*noticed} == {True, False}


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
