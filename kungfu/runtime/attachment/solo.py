"""The attachment of a program that runs alone, without a library or other peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kungfu.runtime.attachment.protocol import Attachment


class SoloAttachment(Attachment):
    """The all-reduce of a single peer."""

    name = "solo"

    def all_reduce(self, values: Sequence[Any], *, prescale: Any, order: Any, tag: str) -> list[Any]:
        """The values, prescaled: with one peer there is nothing to sum."""
        scaled = [_scaled(tf.convert_to_tensor(value), prescale) for value in values[:-1]]
        return [*scaled, tf.convert_to_tensor(values[-1])]


def _scaled(value: Any, prescale: Any) -> Any:
    if not value.dtype.is_floating:
        return value
    return tf.where(tf.equal(prescale, 0.0), tf.zeros_like(value), value * tf.cast(prescale, value.dtype))
