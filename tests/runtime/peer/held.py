"""States of numbers and of bytes, as the runtime sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kungfu.runtime.state.buffers import Buffers, digests
from kungfu.runtime.state.compare import sampled


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

    def regrouped(self, *, rank: int, size: int, is_source: bool) -> None:
        """The survivors of a loss hold one state."""

    def _named(self, checksums: Sequence[int]) -> dict[str, int]:
        return {f"v{place}": checksum for place, checksum in enumerate(checksums)}


class Held(Numbers):
    """One variable of bytes, and how often the view changed under it."""

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(np.frombuffer(content, np.uint8))
        self.rescales = 0

    @property
    def content(self) -> bytes:
        return self.variables[0].tobytes()

    @content.setter
    def content(self, content: bytes) -> None:
        self.variables[0] = np.frombuffer(bytearray(content), np.uint8)

    def rescaled(self) -> None:
        self.rescales += 1
