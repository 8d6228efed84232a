"""Abstract Unix addresses: not files, so nothing is left to unlink. Only processes of this user are accepted.

Any process on the machine may bind an address. So a job derives its addresses from its secret: other users cannot
predict them, and a process that has bound one address of a peer does not stop the peer from listening at the next.
"""

from __future__ import annotations

import errno
import hmac
import os
import socket
import struct
from contextlib import ExitStack

from kungfu.errors import PeerFailure, UsageError

_CREDENTIALS = struct.Struct("3i")
_LONGEST_JOB = 64  # an abstract address holds 107 bytes
_CHOICES = 4


def listen(job: str, name: str, *, secret: bytes, who: str, backlog: int) -> socket.socket:
    """Opens a socket that listens as ``name`` within a job.

    Args:
        name: A name unique within the job.
        secret: The job's secret, from which the addresses are derived.
        who: The name of this peer in errors.
        backlog: The maximum number of connections waiting to be accepted.

    Raises:
        UsageError: Other processes listen at all addresses of ``name``, or the job's name is too long.
    """
    if len(job.encode()) > _LONGEST_JOB:
        raise UsageError(f"a job's name has at most {_LONGEST_JOB} bytes, {job!r} has {len(job.encode())}")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with ExitStack() as undo:
        undo.callback(listening.close)
        if not any(_bound(listening, address) for address in addresses(job, name, secret=secret)):
            raise UsageError(
                f"this peer cannot listen as {who} of job {job!r} (all {_CHOICES} addresses are in use): "
                "is another process running as the same peer?"
            )
        listening.listen(backlog)
        undo.pop_all()
    return listening


def _bound(listening: socket.socket, address: str) -> bool:
    try:
        listening.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def connect(job: str, name: str, *, secret: bytes, timeout_s: float) -> socket.socket | None:
    """Connects to the peer ``name``; ``None`` if no process of this user listens as this peer, or the peer is busy."""
    for address in addresses(job, name, secret=secret):
        connection = _connected(address, timeout_s)
        if connection is not None:
            return connection
    return None


def _connected(address: str, timeout_s: float) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    with ExitStack() as undo:
        undo.callback(connection.close)
        try:
            connection.connect(address)
            refuse_other_users(connection)
        # No process listens there, the listener is busy, or another user has bound the address.
        except (ConnectionRefusedError, BlockingIOError, TimeoutError, PeerFailure):
            return None
        undo.pop_all()
    return connection


def addresses(job: str, name: str, *, secret: bytes) -> tuple[str, ...]:
    """The Unix addresses at which ``name`` may listen, in order of preference; a listener uses the first free address.

    >>> len(addresses("job", "1-0", secret=b"a")[0])
    44
    >>> {*addresses("job", "1-0", secret=b"a")} & {*addresses("job", "1-0", secret=b"b")}
    set()
    """
    return tuple(
        f"\0kungfu-{job}-{hmac.digest(secret, f'{job!r} {name} {choice}'.encode(), 'sha256').hex()[:32]}"
        for choice in range(_CHOICES)
    )


def refuse_other_users(connection: socket.socket) -> None:
    """Raises ``PeerFailure`` if the process at the other end belongs to another user."""
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.geteuid():
        raise PeerFailure(f"a process of user {user} is not a peer of a job of user {os.geteuid()}")
