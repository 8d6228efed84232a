"""The memory of many variables as one range of bytes, which compiled code checks and copies without the GIL."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kungfu.native import load_state


@dataclass(frozen=True)
class Buffers:
    """The memory of variables, kept alive by ``owner``; a row of ``table`` is an int64 address and a size in bytes."""

    table: NDArray[np.int64]
    owner: object

    @classmethod
    def of(cls, arrays: Sequence[NDArray[np.generic]]) -> Buffers:
        """The memory of arrays.

        Args:
            arrays: Contiguous arrays, which are kept alive.

        >>> Buffers.of([np.zeros(3, np.float32), np.ones(1, np.int64)]).total_bytes
        20
        """
        rows = [(array.ctypes.data, array.nbytes) for array in arrays]
        return cls(np.array(rows, np.int64).reshape(-1, 2), tuple(arrays))

    @property
    def total_bytes(self) -> int:
        return int(self.table[:, 1].sum())

    def read(self, start: int, stop: int) -> bytes:
        """Returns a copy of the bytes from ``start`` to ``stop``."""
        return b"".join(ctypes.string_at(address, size) for address, size in self._pieces(start, stop))

    def write(self, start: int, content: bytes) -> None:
        """Overwrites the bytes from ``start`` on with ``content``."""
        source = np.frombuffer(content, np.uint8).ctypes.data
        for address, size in self._pieces(start, start + len(content)):
            ctypes.memmove(address, source, size)
            source += size

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields the address and size of each variable's piece of the bytes from ``start`` to ``stop``."""
        ends = np.cumsum(self.table[:, 1])
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        for row in range(first, min(last + 1, len(ends))):
            address, size = (int(number) for number in self.table[row])
            before = int(ends[row]) - size
            skipped, end = max(start - before, 0), min(stop - before, size)
            # The range includes bytes of this variable.
            if skipped < end:
                yield address + skipped, end - skipped


def digests(buffers: Buffers) -> list[int]:
    """The 64-bit checksum of every variable, over its bytes in order.

    Equal bytes have the same checksum in every process on machines of one byte order. Different contents have the same
    checksum by accident with probability 2^-64; a checksum gives no protection against an attacker.

    Cost:
        One pass over the memory, at memory speed.

    >>> a, b = digests(Buffers.of([np.array([1.0, 2.0]), np.array([2.0, 1.0])]))
    >>> a == b
    False
    """
    found = np.zeros(len(buffers.table), np.uint64)
    load_state().kungfu_digest(buffers.table.ctypes.data, len(buffers.table), found.ctypes.data)
    return [int(one) for one in found]
