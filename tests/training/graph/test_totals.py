"""What a step adds up over the peers beside its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.training.graph.totals import SentTotals
from tests.training.peers import attached_peers

KINDS = [
    [("float32", (2, 2)), ("float32", ())],
    [("float64", (3,)), ("int64", ())],
    [("float64", (2,)), ("float32", (0,)), ("float32", (3,)), ("int64", (1,))],
    [],
]


def exchanged(rank: int, attachment: LocalAttachment, values: list[Any], samples: int) -> tuple[list[Any], Any]:
    """The sums of totals that travel behind other numbers, and those numbers."""
    order = tf.Variable(0, dtype=tf.int64)
    totals = SentTotals.sent(attachment, values, order=order, samples=tf.constant(samples))
    before = tf.constant([1.0, 10.0 * rank])
    _, extras = attachment.all_reduce(
        [tf.zeros([1]), tf.concat([before, totals.floats], axis=0)], prescale=0.5, order=order, tag="gradients"
    )
    extras, sums = totals.received(extras)
    return [one.numpy() for one in sums], extras.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("empty", [None, 1])
def test_totals_of_every_type_are_added_and_a_peer_without_samples_adds_nothing(kinds, empty):
    draw = np.random.default_rng(0)
    values = [[np.asarray(draw.integers(0, 9, shape), kind) for kind, shape in kinds] for _ in range(3)]

    def run(rank: int, attachment: LocalAttachment) -> Any:
        return exchanged(rank, attachment, values[rank], 0 if rank == empty else 4)

    with attached_peers(3) as peers:
        found = peers(run)
    counted = [one for rank, one in enumerate(values) if rank != empty]
    for sums, extras in found:
        np.testing.assert_array_equal(extras, [3.0, 30.0])
        assert [one.dtype.name for one in sums] == [kind for kind, _ in kinds]
        for place, one in enumerate(sums):
            np.testing.assert_array_equal(one, np.sum([row[place] for row in counted], axis=0))
