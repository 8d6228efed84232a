"""A state of one variable of bytes, as the runtime sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kungfu.runtime.peer.replicate import Buffers, digests, sampled


class Held:
    """One variable of bytes, and how often the view changed under it."""

    def __init__(self, content: bytes = b"") -> None:
        self.memory: Any = np.zeros(0, np.uint8)
        self.content = content
        self.rescales = 0

    @property
    def content(self) -> bytes:
        return self.memory.tobytes()

    @content.setter
    def content(self, content: bytes) -> None:
        self.memory = np.frombuffer(bytearray(content), np.uint8)

    def lent(self) -> Buffers:
        return Buffers.of([self.memory])

    @contextmanager
    def overwritten(self) -> Iterator[Buffers]:
        yield self.lent()

    def digest(self) -> dict[str, int]:
        return {"w": digests(self.lent())[0]}

    def sampled_digest(self, turn: int) -> dict[str, int]:
        return {"w": digests(sampled(self.lent(), turn))[0]}

    def rescaled(self) -> None:
        self.rescales += 1
