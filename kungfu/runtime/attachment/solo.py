"""The attachment of a program that runs alone: no library, no peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kungfu.runtime.attachment.protocol import Attachment


class SoloAttachment(Attachment):
    """Sums over one peer."""

    name = "solo"

    def all_reduce(self, values: Sequence[Any], *, prescale: Any, order: Any, tag: str) -> list[Any]:
        """What the other attachments do with one peer: only the scale is left."""
        scaled = [_scaled(tf.convert_to_tensor(value), prescale) for value in values[:-1]]
        return [*scaled, tf.convert_to_tensor(values[-1])]

    def open(self, *, rank: int, size: int, **_: Any) -> None:
        """There is nothing to plug into."""

    def wait_at_most(self, deadline_s: float) -> None:
        """There is nobody to wait for."""

    def late(self) -> None:
        """Nobody is waited for."""

    def failure_of(self, error: Any) -> None:
        """No message can fail."""

    def close(self) -> None:
        """There is nothing to unplug."""


def _scaled(value: Any, prescale: Any) -> Any:
    if not value.dtype.is_floating:
        return value
    return tf.where(tf.equal(prescale, 0.0), tf.zeros_like(value), value * tf.cast(prescale, value.dtype))
