"""Which variables differ between peers, by every peer's own reckoning."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.state import digests
from kungfu.runtime.state.variables import memory_of
from kungfu.training.graph.unlike import unlike


def found(peers: list[list[list[float]]]) -> list[list[int]]:
    """What each of the peers finds that hold these variables."""
    held = [[tf.Variable(one, dtype=tf.float32) for one in peer] for peer in peers]
    told: list[list[tf.Tensor]] = []

    def listen(tensors):
        told.append(list(tensors))
        return tensors

    for variables in held:
        unlike(variables, size=1, total=listen)
    sums = [tf.add_n(list(column)) for column in zip(*told, strict=True)]
    return [unlike(variables, size=len(peers), total=lambda _: sums) for variables in held]


def test_one_peer_that_differs_is_enough_and_all_know_where() -> None:
    same, zero, nan = [1.0, 2.0], [0.0], [float("nan")]
    peers = [[same, zero, nan], [same, [-0.0], nan], [same, zero, nan]]
    assert found(peers) == [[1]] * 3, "NaN is equal to itself here, and 0 is not -0: bits are compared"


@given(st.integers(1, 5).flatmap(lambda size: st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3),
                                                       min_size=size, max_size=size)))  # fmt: skip
def test_all_peers_agree_with_what_is_seen_from_outside(values: list[list[int]]) -> None:
    peers = [[[float(one)] for one in peer] for peer in values]
    differ = [place for place, column in enumerate(zip(*values, strict=True)) if len(set(column)) > 1]
    assert found(peers) == [differ] * len(peers)


@pytest.mark.parametrize("size", [2, 256])
def test_digests_of_any_bits_are_summed_without_overflow(size: int) -> None:
    words = np.array(digests(memory_of([tf.Variable([1.0]), tf.Variable([2.0])])), np.uint64)
    assert words.max() > 2**60, "large enough to show it"
    peers = [[[1.0], [2.0]]] * (size - 1)
    assert found([*peers, [[1.0], [3.0]]]) == [[1]] * size
