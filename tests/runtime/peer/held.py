"""A state of one variable of bytes, as the runtime sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kungfu.runtime.state import Buffers, digests, sampled


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

    def readable(self) -> Buffers:
        return Buffers.of([self.memory])

    @contextmanager
    def writable(self) -> Iterator[Buffers]:
        yield self.readable()

    def digest(self) -> dict[str, int]:
        return {"w": digests(self.readable())[0]}

    def sampled_digest(self, turn: int) -> dict[str, int]:
        return {"w": digests(sampled(self.readable(), turn))[0]}

    def values(self, places: Sequence[int]) -> list[Any]:
        return [self.memory for _ in places]

    def assign(self, values: Mapping[int, Any]) -> None:
        for value in values.values():
            self.memory = value.copy()

    def rescaled(self) -> None:
        self.rescales += 1


class Numbers:
    """Several variables, as the runtime sees them."""

    def __init__(self, *variables: Any) -> None:
        self.variables = [np.array(one) for one in variables]

    def readable(self) -> Buffers:
        return Buffers.of(self.variables)

    @contextmanager
    def writable(self) -> Iterator[Buffers]:
        yield self.readable()

    def digest(self) -> dict[str, int]:
        return self._named(digests(self.readable()))

    def sampled_digest(self, turn: int) -> dict[str, int]:
        return self._named(digests(sampled(self.readable(), turn)))

    def values(self, places: Sequence[int]) -> list[Any]:
        return [self.variables[place] for place in places]

    def assign(self, values: Mapping[int, Any]) -> None:
        for place, value in values.items():
            self.variables[place] = value.copy()

    def rescaled(self) -> None:
        """Nothing starts anew."""

    def _named(self, checksums: Sequence[int]) -> dict[str, int]:
        return {f"v{place}": checksum for place, checksum in enumerate(checksums)}
