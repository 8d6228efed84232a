"""The checksum of what all peers must hold alike: what its sums tell, and the barrier that follows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu import control
from kungfu.training.graph.state_checksum import StateChecksum, checksum_of
from tests.training.graph.test_barrier_posts import Posting
from tests.training.peers import attached_peers

CHECKSUMS = st.integers(0, 2**32 - 1)
CHECKSUM = StateChecksum()


def numbers(checksum: int | None) -> np.ndarray:
    """A peer's share of the message."""
    CHECKSUM.offer(checksum)
    return CHECKSUM.numbers.numpy()


def compared(sums: np.ndarray, size: int) -> int:
    """What the sums of the peers' numbers tell."""
    return int(CHECKSUM.compared(tf.constant(sums), tf.constant(size, tf.int64)))


@settings(max_examples=50)
@given(CHECKSUMS, st.integers(0, 29), st.integers(1, 4000))
def test_sums_of_equal_checksums_tell_nothing_and_one_bit_of_one_peer_is_told(checksum, bit, others):
    alike = others * numbers(checksum)
    assert compared(alike, others) == 0
    assert compared(alike + numbers(checksum ^ 1 << bit), others + 1) == 1


def test_a_step_without_a_checksum_compares_nothing():
    assert compared(3 * numbers(None), 3) == 0
    assert compared(numbers(5) + numbers(None), 2) == 1


@pytest.mark.parametrize("place", [0, 1, 2])
def test_any_bit_of_any_variable_changes_it(place):
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3, dtype=tf.int64), tf.Variable(True)]
    before = checksum_of(variables)
    variables[place].assign([tf.constant([1.0, np.nextafter(np.float32(2.0), 3)]), 2, False][place])
    assert checksum_of(variables) != before


@pytest.mark.parametrize("traced", [False, True])
def test_peers_whose_checksums_differ_hold_a_barrier_after_that_step(traced):
    def run_steps(rank, attachment):
        peer, found = Posting(lambda training: control.every(4).checkpoint(), rank, attachment, traced=traced), []
        for checksum in (7, 7 + rank, None, 9):
            peer.graph_state.posts.checksum.offer(checksum)
            found.append((peer.step(), peer.graph_state.posts.checksum.is_unlike()))
        return found

    with attached_peers(2) as run:
        first, second = run(run_steps)
    assert first == second == [(None, False), ([], True), (None, False), (None, False)]
