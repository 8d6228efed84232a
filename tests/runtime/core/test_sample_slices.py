"""The agreed position: what a step takes of an epoch, and which of it each peer."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.sample_slices import Position, shuffled, slice_indices


def take(position: Position, *, samples: int, batch: int, size: int, seed: int = 7) -> list[list[int]]:
    """Every peer's slice of one step."""
    return [
        slice_indices(position, samples=samples, seed=seed, global_batch_size=batch, size=size, rank=rank).tolist()
        for rank in range(size)
    ]


histories = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 300)), min_size=1, max_size=20)


@given(st.integers(1, 200), histories)
def test_an_epoch_sees_each_sample_once_over_any_history_of_sizes_and_batches(
    samples: int, history: list[tuple[int, int]]
) -> None:
    order, seen = shuffled(samples, seed=7, epoch=3).tolist(), list[int]()
    assert sorted(order) == list(range(samples))
    for size, batch in cycle(history):
        parts = take(Position(3, len(seen)), samples=samples, batch=batch, size=size)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        step = [index for part in parts for index in part]
        assert step == order[len(seen) : len(seen) + batch]
        seen += step
        if len(seen) == samples:
            break


def test_a_peer_may_have_nothing_to_do_at_the_end_of_an_epoch() -> None:
    assert [len(part) for part in take(Position(0, 98), samples=100, batch=32, size=4)] == [1, 1, 0, 0]
    assert [len(part) for part in take(Position(0, 100), samples=100, batch=32, size=2)] == [0, 0]


def test_order_follows_seed_and_epoch_alone() -> None:
    first = shuffled(1000, seed=1, epoch=0)
    shuffled.cache_clear()
    np.testing.assert_array_equal(shuffled(1000, seed=1, epoch=0), first)
    assert (shuffled(1000, seed=1, epoch=1) != first).mean() > 0.9
    assert (shuffled(1000, seed=2, epoch=0) != first).mean() > 0.9


def test_the_shared_order_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        shuffled(10, seed=1, epoch=0)[0] = 3
