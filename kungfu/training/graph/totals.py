"""What a step adds up over the peers beside its gradients: counts and totals, of which policies and norms see nothing.

Those of float32 ride on the message of the gradients, behind all that the policies have put there. A float64 would lose
bits there, and a whole number its exactness: other types share a message of their own, before that of the gradients.
So where either message fails, nothing has been assigned yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kungfu.runtime.api import Attachment

__all__ = ["SentTotals", "add_up"]


def add_up(attachment: Attachment, values: Sequence[Any], *, order: tf.Variable) -> list[Any]:
    """Graph: the sums of tensors over the peers, by a message of its own: those that a step knows only at its end.

    Args:
        attachment: Sums over the peers.
        values: Tensors of the same types and shapes on all peers.
        order: The variable by which the messages of a step are ordered.
    """
    given = [tf.convert_to_tensor(one) for one in values]
    floats = [one for one in given if one.dtype == tf.float32]
    others = [one for one in given if one.dtype != tf.float32]
    *sums, vector = attachment.all_reduce(
        [*others, tf.concat([tf.zeros([0], tf.float32), *(tf.reshape(one, [-1]) for one in floats)], axis=0)],
        prescale=tf.constant(1.0, tf.float64),
        order=order,
        tag="metrics",
    )
    pieces = tf.split(vector, [math.prod(one.shape.as_list()) for one in floats]) if floats else []
    added = iter([tf.reshape(one, like.shape) for one, like in zip(pieces, floats, strict=True)])
    rest = iter(sums)
    return [next(added) if one.dtype == tf.float32 else next(rest) for one in given]


@dataclass(frozen=True)
class SentTotals:
    """The totals of one step on their way.

    Args:
        floats: The vector that is to ride on the message of the gradients, at its end.
        shapes: Of the totals in that vector, in their order.
        others: The sums of those of another type, which have come.
        rides: For each total, whether it is in the vector.
    """

    floats: Any
    shapes: Sequence[Any]
    others: Sequence[Any]
    rides: Sequence[bool]

    @classmethod
    def sent(cls, attachment: Attachment, totals: Sequence[Any], *, order: tf.Variable, samples: Any) -> SentTotals:
        """Graph: makes one vector of those of float32, and sends the others.

        Args:
            attachment: Sums over the peers.
            totals: Tensors of the same types and shapes on all peers.
            order: The variable by which the messages of a step are ordered.
            samples: Of this peer; without any its totals are of another peer's sample, and count as zeros.
        """
        given = [tf.where(samples > 0, one, tf.zeros_like(one)) for one in map(tf.convert_to_tensor, totals)]
        rides = [one.dtype == tf.float32 for one in given]
        floats = [one for one, does in zip(given, rides, strict=True) if does]
        others = [one for one, does in zip(given, rides, strict=True) if not does]
        if others:
            whole, last = tf.constant(1.0, tf.float64), tf.zeros([0], tf.float32)
            others = list(attachment.all_reduce([*others, last], prescale=whole, order=order, tag="totals"))[:-1]
        vector = tf.concat([tf.zeros([0], tf.float32), *(tf.reshape(one, [-1]) for one in floats)], axis=0)
        return cls(vector, [one.shape.as_list() for one in floats], others, rides)

    def received(self, extras: Any) -> tuple[Any, list[Any]]:
        """Graph: what came with the gradients, without the totals at its end; and the sums, in their order."""
        counts = [math.prod(shape) for shape in self.shapes]
        if not sum(counts):
            return extras, list(self.others)
        pieces = tf.split(extras[-sum(counts) :], counts)
        floats = iter([tf.reshape(one, shape) for one, shape in zip(pieces, self.shapes, strict=True)])
        others = iter(self.others)
        return extras[: -sum(counts)], [next(floats) if does else next(others) for does in self.rides]
