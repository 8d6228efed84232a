"""The joiners that are getting ready on a host, in a page of memory that its agent and its peers share.

A joiner takes processor time from the peers beside it, which then look slow. So each peer wants to know in each step
whether there is one on its host, and a look into memory costs the step next to nothing.

The page has a byte per peer, which is 1 while that peer is on its way. The agent sets it when it starts a joiner, and
clears it when the process has ended. The joiner clears it when it is ready, and so does every peer of the host that
enters a view with it. Each change is the store of one byte, so no lock is needed, and none can be lost.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress

from kungfu.runtime.ipc import memfd

_BYTES = 4096  # peers whose ids are so far apart share a byte: none of the older ones is on its way any more
_NOBODY, _ON_ITS_WAY = 0, 1
_MARK = b"\x01"


class JoinerPage:
    """The page of one host; the memory is gone when no process has it open any more.

    Args:
        descriptor: The descriptor of the memory; the page owns it.

    Attributes:
        path: Under this path processes of the same user can open it, as long as its maker runs.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _BYTES)
        self._close_descriptor = weakref.finalize(self, os.close, descriptor)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"

    @classmethod
    def create(cls) -> JoinerPage | None:
        """A page without a joiner on its way; ``None`` if this machine gives no such memory."""
        try:
            return cls(memfd.make(_BYTES, name="joiners of a host"))
        except OSError:
            return None

    @classmethod
    def open(cls, path: str) -> JoinerPage | None:
        """The page under a path that its maker gave; ``None`` for an empty path, or where it cannot be opened."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        # The maker has ended, and the path is that of something else; memory that may shrink could end this process.
        if os.fstat(descriptor).st_size != _BYTES or not _is_sealed(descriptor):
            os.close(descriptor)
            return None
        return cls(descriptor)

    def add(self, peer: int) -> None:
        """This peer is on its way."""
        self._mark(peer, _ON_ITS_WAY)

    def remove(self, peers: Iterable[int]) -> None:
        """These peers are not on their way any more."""
        for peer in peers:
            self._mark(peer, _NOBODY)

    def count(self) -> int:
        """The number of joining peers: a tenth of a microsecond while there are none."""
        try:
            return 0 if self._memory.find(_MARK) < 0 else self._memory[:].count(_MARK)
        except ValueError:  # closed
            return 0

    def close(self) -> None:
        """Gives the memory back; later reports on joiners do not reach this process."""
        self._close_descriptor()
        self._memory.close()

    def _mark(self, peer: int, value: int) -> None:
        with suppress(ValueError):  # closed: a process may end, or a view begin, after that
            self._memory[peer % _BYTES] = value


def _is_sealed(descriptor: int) -> bool:
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False
