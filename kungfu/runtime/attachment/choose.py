"""Makes the attachment of a given name, importing only its library; defines the attachment of a job with one peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kungfu.runtime.attachment.protocol import Attachment
from kungfu.runtime.settings import AttachmentName, Deadlines


class SoloAttachment(Attachment):
    """The all-reduce of a program that runs alone, without a library or other peers."""

    name = "solo"

    def all_reduce(self, values: Sequence[Any], *, prescale: Any, order: Any, tag: str) -> list[Any]:
        """The values, scaled as in every attachment; they are not summed, as there is only one peer."""
        scaled = [_scaled(tf.convert_to_tensor(value), prescale) for value in values[:-1]]
        return [*scaled, tf.convert_to_tensor(values[-1])]


def _scaled(value: Any, prescale: Any) -> Any:
    if not value.dtype.is_floating:
        return value
    return tf.where(tf.equal(prescale, 0.0), tf.zeros_like(value), value * tf.cast(prescale, value.dtype))


def make_attachment(name: AttachmentName, *, deadlines: Deadlines | None = None, host: str = "127.0.0.1") -> Attachment:
    """Makes a closed attachment, and loads its library; other peers reach this machine under the name ``host``."""
    if name == "local":
        from kungfu.runtime.attachment.local import LocalAttachment

        return LocalAttachment(heartbeat_s=(deadlines or Deadlines()).heartbeat_s)
    if name == "horovod":
        from kungfu.runtime.attachment.horovod import HorovodAttachment

        return HorovodAttachment(host=host)
    return SoloAttachment()
