"""Exchanges between two steps: what rank 0 knows becomes what all know."""

from __future__ import annotations

import pytest
import tensorflow as tf

from kungfu.training.state.registered_sync import PeerGroup
from tests.training.peers import attached_peers, total_of


@pytest.mark.parametrize(
    "content", [b"", b"a", b"four", bytes(range(254)) * 4, bytes(range(254)) * 4 + b"z", bytes(range(256)) * 5]
)
def test_the_bytes_of_rank_0_reach_all(content):
    with attached_peers(3) as peers:
        given = {0: content}
        found = peers(lambda rank, one: PeerGroup(rank, 3, total_of(one)).from_rank(0, given.get(rank, b"not heard")))
    assert found == [content] * 3


def test_alone_there_is_nobody_to_ask():
    one = PeerGroup(0, 1, lambda tensors: pytest.fail("a message to nobody"))
    assert one.leads
    assert one.from_rank(0, b"own") == b"own"
    one.assign_from_rank([tf.Variable(1.0)])
