"""Abstract Unix addresses: names that are no files, so nothing is left to unlink; only this user's processes count."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import ExitStack

from kungfu.errors import PeerFailure, UsageError

__all__ = ["connect", "listen", "refuse_other_users"]

_CREDENTIALS = struct.Struct("3i")
_LONGEST_JOB = 64  # an abstract address has room for 107 bytes


def listen(job: str, name: str, *, who: str, backlog: int) -> socket.socket:
    """A socket that listens as ``name`` within ``job``; ``who`` is what errors call this peer.

    Raises ``UsageError`` if another one listens as ``name``, and for a job's name that is too long.
    """
    if len(job.encode()) > _LONGEST_JOB:
        raise UsageError(f"a job's name has at most {_LONGEST_JOB} bytes, {job!r} has {len(job.encode())}")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(_address(job, name))
        listening.listen(backlog)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"this peer cannot listen as {who} of job {job!r} ({error.strerror}): "
            "is another process running as the same peer?"
        ) from error
    return listening


def connect(job: str, name: str, *, timeout_s: float) -> socket.socket | None:
    """A connection to who listens as ``name``; ``None`` if nobody does yet, or it is busy."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    with ExitStack() as undo:
        undo.callback(connection.close)
        try:
            connection.connect(_address(job, name))
        except (ConnectionRefusedError, BlockingIOError, TimeoutError):
            return None
        refuse_other_users(connection)
        undo.pop_all()
    return connection


def refuse_other_users(connection: socket.socket) -> None:
    """``PeerFailure`` if the process at the other end is another user's."""
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.geteuid():
        raise PeerFailure(f"a process of user {user} is not a peer of a job of user {os.geteuid()}")


def _address(job: str, name: str) -> str:
    return f"\0kungfu-{job}-{name}"
