"""Shared memory, passed over a pair of connected sockets."""

from __future__ import annotations

import mmap
import os
import socket
from pathlib import Path

import pytest

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.ipc import memfd


def test_both_ends_hold_the_same_memory() -> None:
    ours, theirs = socket.socketpair()
    made = memfd.make(4096)
    with ours, theirs:
        memfd.send(ours, descriptor=made, rank=1)
        received = memfd.receive(theirs, bytes_=4096, deadline_s=60.0, rank=0)
    with mmap.mmap(made, 4096) as here, mmap.mmap(received, 4096) as there:
        assert there[:] == bytes(4096)
        here[7] = 42
        assert there[7] == 42
    os.close(made)
    os.close(received)


@pytest.mark.parametrize("bytes_", [0, 8192])
def test_the_memory_keeps_its_length(bytes_: int) -> None:
    made = memfd.make(4096)
    with pytest.raises(PermissionError):
        os.ftruncate(made, bytes_)
    os.close(made)


def test_memory_of_another_length_or_unsealed_is_refused(tmp_path: Path) -> None:
    unsealed, file = os.memfd_create("unsealed"), os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for descriptor in (unsealed, file):
        os.ftruncate(descriptor, 4096)
    for descriptor, expected in ((memfd.make(4096), 8192), (unsealed, 4096), (file, 4096)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            memfd.send(ours, descriptor=descriptor, rank=1)
            with pytest.raises(PeerFailure, match=f"passed 4096 bytes of memory where {expected} sealed ones"):
                memfd.receive(theirs, bytes_=expected, deadline_s=60.0, rank=0)
        os.close(descriptor)


def test_a_peer_that_hangs_up_is_named() -> None:
    ours, theirs = socket.socketpair()
    made = memfd.make(4096)
    ours.close()
    with theirs, pytest.raises(PeerFailure, match="rank 0 closed its connection"):
        memfd.receive(theirs, bytes_=4096, deadline_s=60.0, rank=0)
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(PeerFailure, match="rank 1 closed its connection"):
        memfd.send(theirs, descriptor=made, rank=1)
    os.close(made)


def test_a_peer_that_passes_nothing_is_named_at_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(DeadlineExceeded, match=r"waited 0\.1 s for rank 0 to pass the shared memory"):
        memfd.receive(theirs, bytes_=4096, deadline_s=0.1, rank=0)
