"""What a run is fed with: pieces of turns, over any history exactly once an epoch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.runtime.core.data import Position, Stamp, advanced
from kungfu.training.data.feed import Feed, Piece, checked_feed
from kungfu.training.data.order import Turn


def feed_of(samples: int, *, batch_size: int = 1, epochs: int = 1, **given: object) -> Feed:
    return checked_feed(np.arange(samples), batch_size=batch_size, epochs=epochs, seed=7, **given)


def turns(position: Position, *, version: int, size: int, batch: int) -> list[Turn]:
    """The turn of every peer of a view."""
    return [Turn(position, version, size, rank, batch) for rank in range(size)]


def pieces(feed: Feed, turn: Turn) -> list[Piece]:
    first = feed.piece(turn)
    return [feed.piece(turn, micro=micro) for micro in range(first.micros)]


steps = st.lists(
    st.tuples(
        st.integers(1, 6),  # peers
        st.integers(1, 40),  # samples of the step
        st.sampled_from(["done", "done", "done", "failed"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)  # TensorFlow, on a machine that others use
@given(st.integers(1, 90), steps, st.none() | st.integers(1, 9))
def test_every_sample_is_trained_on_once_an_epoch_over_joins_leaves_batches_and_recoveries(
    samples: int, history: list[tuple[int, int, str]], most: int | None
) -> None:
    """Each step has a view and a batch of its own; one that failed is done again by whoever is left."""
    feed = feed_of(samples, epochs=2, max_local_batch_size=most)
    position, trained, version = Position(0, 0), np.zeros([2, samples], int), 0
    while position.epoch < feed.epochs:
        size, batch, end = history[version % len(history)]
        of_peers = [pieces(feed, turn) for turn in turns(position, version=version, size=size, batch=batch)]
        assert len({len(one) for one in of_peers}) == 1, "all peers have as many micro-batches"
        version += 1
        if end == "failed" and version % len(history):  # some step of a history has to be done
            continue
        pieces_of_peers = [piece for one in of_peers for piece in one if not feed.stamp(piece).empty]
        taken = [index for piece in pieces_of_peers for index in feed.load(piece).numpy()]
        trained[position.epoch, taken] += 1
        assert len(taken) == min(batch, samples - position.offset)
        position = advanced(position, len(taken), samples=samples)
    assert np.all(trained == 1)


@settings(deadline=None)  # TensorFlow, on a machine that others use
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 5), st.sampled_from(["keep", "drop"]))
def test_the_guesses_from_the_first_piece_on_are_the_whole_run(
    samples: int, batch: int, size: int, remainder: str
) -> None:
    batch = min(batch, samples)
    feed = feed_of(samples, batch_size=batch, epochs=2, max_local_batch_size=3, remainder=remainder)
    seen, count = [], 0
    for rank in range(size):
        piece: Piece | None = feed.piece(Turn(Position(0, 0), 1, size, rank, batch))
        while piece is not None:
            seen.extend((piece.turn.position.epoch, index) for index in feed.indices(piece))
            assert len(feed.indices(piece)) <= 3
            piece, count = feed.following(piece), count + 1
            assert count < 1000
    whole = samples if remainder == "keep" else samples // batch * batch
    assert len(set(seen)) == len(seen) == 2 * whole


@settings(deadline=None)  # TensorFlow, on a machine that others use
@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 40))
def test_the_number_of_micro_batches_is_that_of_the_largest_share(batch: int, size: int, most: int) -> None:
    feed = feed_of(1000, max_local_batch_size=most)
    found = {feed.piece(turn).micros for turn in turns(Position(0, 0), version=1, size=size, batch=batch)}
    assert found == {math.ceil(math.ceil(batch / size) / most)}


def test_a_share_is_used_up_from_its_start_and_its_last_micro_batch_may_be_empty() -> None:
    feed = feed_of(100, max_local_batch_size=4)
    of_peers = [pieces(feed, turn) for turn in turns(Position(0, 0), version=1, size=2, batch=17)]
    assert [[len(feed.indices(piece)) for piece in one] for one in of_peers] == [[4, 4, 1], [4, 4, 0]]


@pytest.mark.parametrize(("batch", "most"), [(1, None), (17, 4)], ids=["a whole share", "a micro-batch"])
def test_who_has_no_samples_is_given_one_of_the_step_that_does_not_count(batch: int, most: int | None) -> None:
    feed = feed_of(100, batch_size=batch, max_local_batch_size=most)
    first, second = turns(Position(0, 7), version=1, size=2, batch=batch)
    (*_, piece) = pieces(feed, second)
    assert not len(feed.indices(piece))
    assert feed.load(piece).numpy().tolist() == feed.indices(pieces(feed, first)[0])[:1].tolist()
    assert [feed.stamp(pieces(feed, turn)[-1]).empty for turn in (first, second)] == [False, True]


def test_a_stamp_tells_the_piece() -> None:
    turn = Turn(Position(2, 30), 5, size=1, rank=0, global_batch_size=10)
    feed = feed_of(100, max_local_batch_size=4)
    assert feed.stamp(feed.piece(turn, micro=1)) == Stamp(2, 30, 5, micro=1, micros=3, empty=False)


def test_where_remainders_are_dropped_an_epoch_ends_before_a_step_that_would_be_smaller() -> None:
    feed = feed_of(10, batch_size=4, remainder="drop", epochs=9)
    turn = Turn(Position(0, 0), 1, 1, 0, 4)
    second = feed.order.after(turn)
    assert second.position == Position(0, 4)
    assert feed.order.after(second).position == Position(1, 0)
    assert feed.order.after(replace(turn, global_batch_size=99)).position == Position(1, 0), "an epoch is one step"


def test_an_error_of_loading_names_its_samples() -> None:
    def broken(record: int) -> float:
        raise OSError("disk gone")

    feed = checked_feed(list(range(50)), batch_size=5, epochs=1, seed=0, load=broken)
    piece = feed.piece(Turn(Position(0, 10), 1, 1, 0, 5))
    with pytest.raises(OSError, match="disk gone") as caught:
        feed.load(piece)
    (note,) = caught.value.__notes__
    indices = feed.indices(piece)
    assert f"5 samples with indices between {min(indices)} and {max(indices)}" in note
    assert "at sample 10 of epoch 0" in note


@pytest.mark.parametrize(
    ("given", "message"),
    [({"max_local_batch_size": 0}, "max_local_batch_size=0"), ({"remainder": "cut"}, "one of keep, drop")],
)
def test_what_does_not_fit_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        feed_of(10, **given)
