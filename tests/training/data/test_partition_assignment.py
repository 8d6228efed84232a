"""Who reads which partition: each row once an epoch over any history, and few partitions a peer."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import InternalError
from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data.partition_assignment import Assignment, Part, Partitions

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
