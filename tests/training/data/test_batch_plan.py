"""What a run is fed with: pieces of turns, over any history exactly once an epoch, and rows loaded for other slices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu.runtime.core.sample_slices import Position, Stamp, advanced
from kungfu.training.data.batch_plan import BatchPlan, KeptRows, MicroBatch, make_batch_plan
from kungfu.training.data.sampler import StepSlice


def plan_of(samples: int, *, batch_size: int = 1, epochs: int = 1, **given: object) -> BatchPlan:
    return make_batch_plan(np.arange(samples), batch_size=batch_size, epochs=epochs, seed=7, **given)


def turns(position: Position, *, version: int, size: int, batch: int) -> list[StepSlice]:
    """The turn of every peer of a view."""
    return [StepSlice(position, version, size, rank, batch) for rank in range(size)]


def pieces(plan: BatchPlan, step_slice: StepSlice) -> list[MicroBatch]:
    first = plan.micro_batch(step_slice)
    return [plan.micro_batch(step_slice, micro=micro) for micro in range(first.micros)]


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
def test_every_sample_is_trained_on_once_an_epoch(
    samples: int, history: list[tuple[int, int, str]], most: int | None
) -> None:
    """Every sample is trained on once an epoch, over joins, leaves, batches and recoveries.

    Each step has a view and a batch of its own; one that failed is done again by whoever is left.
    """
    plan = plan_of(samples, epochs=2, max_local_batch_size=most)
    position, trained, version = Position(0, 0), np.zeros([2, samples], int), 0
    while position.epoch < plan.epochs:
        size, batch, end = history[version % len(history)]
        of_peers = [pieces(plan, step_slice) for step_slice in turns(position, version=version, size=size, batch=batch)]
        assert len({len(one) for one in of_peers}) == 1, "all peers have as many micro-batches"
        version += 1
        if end == "failed" and version % len(history):  # some step of a history has to be done
            continue
        pieces_of_peers = [micro_batch for one in of_peers for micro_batch in one if not plan.stamp(micro_batch).empty]
        taken = [index for micro_batch in pieces_of_peers for index in plan.load(micro_batch).numpy()]
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
    plan = plan_of(samples, batch_size=batch, epochs=2, max_local_batch_size=3, remainder=remainder)
    seen, count = [], 0
    for rank in range(size):
        micro_batch: MicroBatch | None = plan.micro_batch(StepSlice(Position(0, 0), 1, size, rank, batch))
        while micro_batch is not None:
            seen.extend((micro_batch.step_slice.position.epoch, index) for index in plan.indices(micro_batch))
            assert len(plan.indices(micro_batch)) <= 3
            micro_batch, count = plan.following(micro_batch), count + 1
            assert count < 1000
    whole = samples if remainder == "keep" else samples // batch * batch
    assert len(set(seen)) == len(seen) == 2 * whole


@settings(deadline=None)  # TensorFlow, on a machine that others use
@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 40))
def test_the_number_of_micro_batches_is_that_of_the_largest_share(batch: int, size: int, most: int) -> None:
    plan = plan_of(1000, max_local_batch_size=most)
    found = {
        plan.micro_batch(step_slice).micros for step_slice in turns(Position(0, 0), version=1, size=size, batch=batch)
    }
    assert found == {math.ceil(math.ceil(batch / size) / most)}


@pytest.mark.parametrize(("batch", "most"), [(1, None), (17, 4)], ids=["a whole share", "a micro-batch"])
def test_who_has_no_samples_is_given_one_of_the_step_that_does_not_count(batch: int, most: int | None) -> None:
    plan = plan_of(100, batch_size=batch, max_local_batch_size=most)
    first, second = turns(Position(0, 7), version=1, size=2, batch=batch)
    (*_, micro_batch) = pieces(plan, second)
    if most is not None:  # a share is used up from its start
        assert [len(plan.indices(one)) for one in pieces(plan, first) + pieces(plan, second)] == [4, 4, 1, 4, 4, 0]
    assert not len(plan.indices(micro_batch))
    assert plan.load(micro_batch).numpy().tolist() == plan.indices(pieces(plan, first)[0])[:1].tolist()
    assert [plan.stamp(pieces(plan, step_slice)[-1]).empty for step_slice in (first, second)] == [False, True]


def test_a_stamp_tells_the_piece() -> None:
    step_slice = StepSlice(Position(2, 30), 5, size=1, rank=0, global_batch_size=10)
    plan = plan_of(100, max_local_batch_size=4)
    assert plan.stamp(plan.micro_batch(step_slice, micro=1)) == Stamp(2, 30, 5, micro=1, micros=3, empty=False)


def test_a_batch_larger_than_an_epoch_is_one_step_where_remainders_are_dropped() -> None:
    plan = plan_of(10, batch_size=4, remainder="drop", epochs=9)
    whole = plan.micro_batch(StepSlice(Position(0, 0), 1, 1, 0, 99))
    assert plan.following(whole).step_slice.position == Position(1, 0)


def test_an_error_of_loading_names_its_samples() -> None:
    def broken(record: int) -> float:
        raise OSError("disk gone")

    plan = make_batch_plan(list(range(50)), batch_size=5, epochs=1, seed=0, load=broken)
    micro_batch = plan.micro_batch(StepSlice(Position(0, 10), 1, 1, 0, 5))
    with pytest.raises(OSError, match="disk gone") as caught:
        plan.load(micro_batch)
    (note,) = caught.value.__notes__
    indices = plan.indices(micro_batch)
    assert f"5 samples with indices between {min(indices)} and {max(indices)}" in note
    assert "at sample 10 of epoch 0" in note


# ---- rows that were loaded for another slice -------------------------------------------------------------------------


class Source:
    """Ten times the index, beside a text; remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, indices: Any) -> Any:
        self.asked.append(indices.tolist())
        return {"number": tf.constant(indices * 10), "text": tf.strings.as_string(indices)}


def taken(kept: KeptRows, source: Source, indices: list[int], *, epoch: int = 0) -> list[int]:
    batch = kept.take(epoch, np.array(indices), source)
    assert batch["text"].numpy().tolist() == [str(one).encode() for one in indices]
    return batch["number"].numpy().tolist()


def test_only_what_is_missing_is_loaded_and_the_order_is_that_of_the_indices():
    kept, source = KeptRows(), Source()
    assert taken(kept, source, [5, 3, 8]) == [50, 30, 80]
    assert taken(kept, source, [1, 9]) == [10, 90]
    assert taken(kept, source, [9, 4, 3, 7, 5]) == [90, 40, 30, 70, 50]
    assert source.asked == [[5, 3, 8], [1, 9], [4, 7]]
    assert taken(kept, source, [7, 1]) == [70, 10]
    assert len(source.asked) == 3, "all of it was there"


def test_rows_of_another_epoch_and_of_older_batches_are_loaded_anew():
    kept, source = KeptRows(), Source()
    taken(kept, source, [0, 1])
    taken(kept, source, [0, 2], epoch=1)
    assert source.asked == [[0, 1], [0, 2]]
    for one in ([3], [4], [5]):
        taken(kept, source, one)
    taken(kept, source, [0])
    assert source.asked[2:] == [[3], [4], [5], [0]]
    assert len(kept._loaded) == 4


def test_smaller_slices_of_what_was_loaded_ahead_load_nothing():
    """Twice as many peers: each slice is half of one that was loaded, as far as the loader had come."""
    kept, source = KeptRows(), Source()
    for start in (0, 4, 8):
        taken(kept, source, list(range(start, start + 4)))
    for start in (4, 6, 8, 10):
        taken(kept, source, [start, start + 1])
    assert len(source.asked) == 3
    taken(kept, source, [12, 13])
    taken(kept, source, [10, 11])
    assert source.asked[3:] == [[12, 13]], "and the step before may be done again"
