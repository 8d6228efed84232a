"""Sums counts and totals over the peers, besides the gradients; policies and norms do not include these sums.

float32 totals ride on the gradients' message, after the values of the policies. float64 values would lose bits there,
and integers would become inexact, so all other types share a separate message, sent before the gradients' message. If
either message fails, nothing has been assigned yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from kungfu.runtime.api import Attachment


def add_up(attachment: Attachment, values: Sequence[Any], *, order: tf.Variable, tag: str) -> list[Any]:
    """Graph: sums tensors over the peers, by a separate message; all peers pass the same types and shapes."""
    sent = _by_type([tf.convert_to_tensor(one) for one in values])
    whole = tf.constant(1.0, tf.float64)
    *others, vector = attachment.all_reduce([*sent.others, sent.floats], prescale=whole, order=order, tag=tag)
    return replace(sent, others=others).together(vector)


@dataclass(frozen=True)
class SentTotals:
    """The totals of one step while their messages are under way."""

    floats: Any  # the vector that rides on the gradients' message, at its end
    shapes: Sequence[Any]  # of the totals in that vector, in order; an open shape is a tensor
    others: Sequence[Any]  # the received sums of the totals of other types
    rides: Sequence[bool]  # for each total, True if it is in the vector

    @staticmethod
    def sent(attachment: Attachment, totals: Sequence[Any], *, order: tf.Variable, samples: Any) -> SentTotals:
        """Graph: packs the float32 totals into one vector, and sends the other totals. A peer without ``samples``
        contributes zeros, since its totals stem from a sample of another peer."""
        sent = _by_type([tf.where(samples > 0, one, tf.zeros_like(one)) for one in map(tf.convert_to_tensor, totals)])
        if not sent.others:
            return sent
        whole, given = tf.constant(1.0, tf.float64), [*sent.others, tf.zeros([0], tf.float32)]
        return replace(sent, others=attachment.all_reduce(given, prescale=whole, order=order, tag="totals")[:-1])

    def received(self, extras: Any) -> tuple[Any, list[Any]]:
        """Graph: splits the values received with the gradients into those before the totals, and the sums of totals."""
        if not self.shapes:
            return extras, list(self.others)
        at = tf.size(extras) - sum(map(_elements, self.shapes))
        return extras[:at], self.together(extras[at:])

    def together(self, vector: Any) -> list[Any]:
        """Graph: the sums in the order of the totals; the float32 sums are read from ``vector``."""
        floats, others = iter(_cut(vector, self.shapes)), iter(self.others)
        return [next(floats) if does else next(others) for does in self.rides]


def _by_type(given: Sequence[Any]) -> SentTotals:
    """Graph: sorts tensors before sending: packs the float32 tensors into one vector, and keeps other types apart."""
    rides = [one.dtype == tf.float32 for one in given]
    floats = [one for one, does in zip(given, rides, strict=True) if does]
    vector = tf.concat([tf.zeros([0], tf.float32), *(tf.reshape(one, [-1]) for one in floats)], axis=0)
    others = [one for one, does in zip(given, rides, strict=True) if not does]
    return SentTotals(vector, [_shape(one) for one in floats], others, rides)


def _cut(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    """Unpacks the tensors of these shapes from a vector."""
    if not shapes:
        return []
    pieces = tf.split(vector, tf.stack([_elements(shape) for shape in shapes]), num=len(shapes))
    return [tf.reshape(one, shape) for one, shape in zip(pieces, shapes, strict=True)]


def _elements(shape: Any) -> Any:
    return math.prod(shape) if isinstance(shape, list) else tf.reduce_prod(shape)


def _shape(tensor: Any) -> Any:
    """The shape as a list if it is known, else as a tensor, since a total may have one row per peer of the view."""
    return tensor.shape.as_list() if tensor.shape.is_fully_defined() else tf.shape(tensor)
