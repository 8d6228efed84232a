"""Attachments by name. Only this module knows all of them, and it imports only the requested one."""

from __future__ import annotations

from kungfu.runtime.attachment.protocol import Attachment
from kungfu.runtime.settings import AttachmentName, Deadlines


def make_attachment(name: AttachmentName, *, deadlines: Deadlines | None = None, host: str = "127.0.0.1") -> Attachment:
    """A new, closed attachment; its library is loaded only now. The other peers reach this machine as ``host``."""
    if name == "local":
        from kungfu.runtime.attachment.local import LocalAttachment

        return LocalAttachment(heartbeat_s=(deadlines or Deadlines()).heartbeat_s)
    if name == "horovod":
        from kungfu.runtime.attachment.horovod import HorovodAttachment

        return HorovodAttachment(host=host)
    from kungfu.runtime.attachment.solo import SoloAttachment

    return SoloAttachment()
