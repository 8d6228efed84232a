"""The joiners that are getting ready on a host, in a memory page shared by the host's agent and peers.

A joiner takes processor time from the other peers of its host, which then look slow. So each peer checks in each step
whether its host has a joiner; reading memory costs the step almost nothing.

The page has a byte per peer, which is 1 while that peer is getting ready. The agent sets the byte when it starts a
joiner, and clears the byte when the joiner's process has ended. When the joiner is ready, it clears the byte, and so
does every peer of the host that enters a view with the joiner. Each change stores one byte, so no lock is needed, and
no change is lost.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress

from kungfu.runtime.ipc import memfd

_BYTES = 4096  # peers with distant ids may share a byte; the older peer is ready by then
_NOBODY, _ON_ITS_WAY = 0, 1
_MARK = b"\x01"


class JoinerPage:
    """A memory page that shows the joiners of one host; the memory is freed once no process has the page open.

    Args:
        descriptor: The file descriptor of the memory, which the page owns; ``None`` for memory of this process alone.

    Attributes:
        path: The path under which processes of the same user can open the page while its creator runs; empty if no
            other process can.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._memory = mmap.mmap(-1 if descriptor is None else descriptor, _BYTES)
        self._close_descriptor = (lambda: None) if descriptor is None else weakref.finalize(self, os.close, descriptor)
        self.path = "" if descriptor is None else f"/proc/{os.getpid()}/fd/{descriptor}"

    @classmethod
    def create(cls) -> JoinerPage:
        """Creates a page without joiners; if this machine cannot share memory, no peer can open the page."""
        try:
            return cls(memfd.make(_BYTES, name="joiners of a host"))
        except OSError:
            return cls(None)

    @classmethod
    def open(cls, path: str) -> JoinerPage | None:
        """Opens the page under a path given by its creator; ``None`` if the path is empty or cannot be opened."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        # The creator has ended, and the path names another file; reading memory that can shrink could end this process.
        if not memfd.has_fixed_size(descriptor, _BYTES):
            os.close(descriptor)
            return None
        return cls(descriptor)

    def add(self, peer: int) -> None:
        """Marks a peer as a joiner that is getting ready."""
        self._mark(peer, _ON_ITS_WAY)

    def remove(self, peers: Iterable[int]) -> None:
        """Marks peers as no longer getting ready."""
        for peer in peers:
            self._mark(peer, _NOBODY)

    def count(self) -> int:
        """The number of joiners that are getting ready; the call takes 0.1 µs if there are none."""
        try:
            return 0 if self._memory.find(_MARK) < 0 else self._memory[:].count(_MARK)
        except ValueError:  # the page is closed
            return 0

    def close(self) -> None:
        """Unmaps the memory; `count` returns 0 afterwards."""
        self._close_descriptor()
        self._memory.close()

    def _mark(self, peer: int, value: int) -> None:
        with suppress(ValueError):  # the page is closed: a process may end, or a view begin, after that
            self._memory[peer % _BYTES] = value
