"""Meetings between two steps: what rank 0 knows becomes what all know."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.cli.report import narrative
from kungfu.event_log.events import LateEvent
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.training.loop.between_steps import BETWEEN_STEPS, peer_group, total
from kungfu.training.state.registered_sync import PeerGroup
from tests.training.peers import attached_peers


def meeting(rank: int, attachment: LocalAttachment, *, size: int) -> PeerGroup:
    order = tf.Variable(0, dtype=tf.int64)

    def total(tensors: Any, *, scale: float = 1.0) -> Any:
        prescale, last = tf.constant(scale, tf.float64), tf.zeros([0])
        return attachment.all_reduce([*tensors, last], prescale=prescale, order=order, tag="meeting")[:-1]

    return PeerGroup(rank, size, partial(total))


@pytest.mark.parametrize(
    "content", [b"", b"a", b"four", bytes(range(254)) * 4, bytes(range(254)) * 4 + b"z", bytes(range(256)) * 5]
)
def test_the_bytes_of_rank_0_reach_all(content):
    with attached_peers(3) as peers:
        found = peers(
            lambda rank, one: meeting(rank, one, size=3).from_rank(0, content if rank == 0 else b"not heard at all")
        )
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
        meeting(rank, attachment, size=2).assign_from_rank(variables)
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


def test_a_peer_that_is_late_between_steps_is_told_in_a_sentence():
    late = LateEvent(time=1.0, ranks=(1,), where=BETWEEN_STEPS, step=18, waited_s=15.0)
    told = "rank 1 is late in the exchange of values after step 18: 15.0 s so far, but it is alive"
    assert narrative([late])[0].headline == told
    assert {inspect.signature(one).parameters["tag"].default for one in (peer_group, total)} == {BETWEEN_STEPS}
