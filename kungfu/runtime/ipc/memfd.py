"""The memory that the peers of one machine share: one peer creates it and passes it to the others over sockets.

The memory has no name, so no other process can open it and no file is left behind. It is outside ``/dev/shm``, which is
small in containers. It is sealed against shrinking, so that no peer can cause a memory fault in another peer.
"""

from __future__ import annotations

import fcntl
import os
import socket

from kungfu.errors import DeadlineExceeded, PeerFailure

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make(bytes_: int, *, name: str = "kungfu") -> int:
    """Creates shared memory of ``bytes_`` zeros, called ``name`` in ``/proc``; the caller closes the descriptor."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, bytes_)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def has_fixed_size(descriptor: int, bytes_: int) -> bool:
    """True if the memory has ``bytes_`` sealed bytes; else reading it may end this process by SIGBUS."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # another kind of file
        seals = 0
    return os.fstat(descriptor).st_size == bytes_ and bool(seals & fcntl.F_SEAL_SHRINK)


def send(connection: socket.socket, *, descriptor: int, rank: int) -> None:
    """Sends the memory to the peer of ``rank`` over a socket; raises ``PeerFailure`` if that peer has closed it."""
    try:
        socket.send_fds(connection, [b"m"], [descriptor])
    except ConnectionError as error:
        text = f"rank {rank} closed its connection before it got the shared memory"
        raise PeerFailure(text, ranks=[rank]) from error


def receive(connection: socket.socket, *, bytes_: int, deadline_s: float, rank: int) -> int:
    """Receives the memory that the peer of ``rank`` passes; returns its descriptor, which the caller closes.

    Raises:
        DeadlineExceeded: No memory arrived in time.
        PeerFailure: The peer closed the connection, or passed anything but ``bytes_`` sealed bytes.
    """
    connection.settimeout(deadline_s)
    try:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except TimeoutError as error:
        text = f"waited {deadline_s:.1f} s for rank {rank} to pass the shared memory"
        raise DeadlineExceeded(text, waiting_for=[rank], waited_s=deadline_s) from error
    except ConnectionError as error:
        raise _hung_up(rank) from error
    # The connection has ended, or delivered a byte without memory.
    if not descriptors:
        raise _hung_up(rank)
    if not has_fixed_size(descriptors[0], bytes_):
        found = os.fstat(descriptors[0]).st_size
        os.close(descriptors[0])
        raise PeerFailure(
            f"rank {rank} passed {found} bytes of memory where {bytes_} sealed ones were expected; "
            "run the same version of kungfu on all peers",
            ranks=[rank],
        )
    return descriptors[0]


def _hung_up(rank: int) -> PeerFailure:
    return PeerFailure(f"rank {rank} closed its connection before it passed the shared memory", ranks=[rank])
