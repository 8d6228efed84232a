"""A disk without room, as the kernel makes it for whoever asks: no file of this process grows beyond a limit."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["full_disk"]


@contextmanager
def full_disk(*, room_bytes: int = 0) -> Iterator[None]:
    """No file is longer than ``room_bytes``: what would make it so is written as far as it fits, then ``EFBIG``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
