"""Exchanges between two steps: what rank 0 knows becomes what all know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.runtime.attachment.local import LocalAttachment
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


def test_variables_that_differ_become_those_of_rank_0_and_others_are_not_touched():
    def run(rank: int, attachment: LocalAttachment) -> Any:
        variables = [
            tf.Variable([1.0, -0.0]),
            tf.Variable([float(rank), np.nan]),
            tf.Variable(7 * rank, dtype=tf.int64),
            tf.Variable([rank == 0, False]),
            tf.Variable(np.float64(rank)),
        ]
        PeerGroup(rank, 2, total_of(attachment)).assign_from_rank(variables)
        return [one.numpy().tobytes() for one in variables]

    with attached_peers(2) as peers:
        first, second = peers(run)
    assert first == second
    expected = [np.float32([1.0, -0.0]), np.float32([0.0, np.nan]), np.int64(0), np.array([True, False]), np.float64(0)]
    assert first == [one.tobytes() for one in expected]


def test_alone_there_is_nobody_to_ask():
    one = PeerGroup(0, 1, lambda tensors: pytest.fail("a message to nobody"))
    assert one.leads
    assert one.from_rank(0, b"own") == b"own"
    one.assign_from_rank([tf.Variable(1.0)])
