"""Rows that were loaded for another slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.training.data.kept_rows import KeptRows


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
