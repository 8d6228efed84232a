"""The agreed position: what a step takes of an epoch, and which of it each peer."""

from __future__ import annotations

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


histories = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=20)


@given(st.integers(1, 200), histories)
def test_an_epoch_sees_each_sample_once_over_any_history_of_sizes_and_batches(
    samples: int, history: list[tuple[int, int]]
) -> None:
    seen: list[int] = []
    step = 0
    while len(seen) < samples:
        size, batch = history[step % len(history)]
        for part in take(Position(0, len(seen)), samples=samples, batch=batch, size=size):
            seen.extend(part)
        step += 1
    assert sorted(seen) == list(range(samples))
    assert seen == shuffled(samples, seed=7, epoch=0).tolist()


@given(st.integers(1, 200), st.integers(0, 199), st.integers(1, 300), st.integers(1, 9))
def test_slices_of_peers_are_disjoint_even_and_cover_the_step(samples: int, offset: int, batch: int, size: int) -> None:
    offset = min(offset, samples - 1)
    parts = take(Position(3, offset), samples=samples, batch=batch, size=size)
    taken = [index for part in parts for index in part]
    assert taken == shuffled(samples, seed=7, epoch=3)[offset : offset + batch].tolist()
    assert len(set(taken)) == len(taken) == min(batch, samples - offset)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


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
