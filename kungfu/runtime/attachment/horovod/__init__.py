"""The attachment for several machines and GPUs, based on Horovod's engine."""

from kungfu.runtime.attachment.horovod.attachment import HorovodAttachment

__all__ = ["HorovodAttachment"]
