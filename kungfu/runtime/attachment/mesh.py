"""One authenticated socket to each other peer of a view, on one machine.

Peers listen on abstract Unix addresses: names that are no files, so nothing is left to unlink. Each calls the ranks
below its own and answers those above. A caller waits only for lower ranks, so no ring of peers waits for itself.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from contextlib import ExitStack

from kungfu.errors import DeadlineExceeded, PeerFailure, UsageError
from kungfu.runtime.attachment.handshake import Membership, answer, call

__all__ = ["Mesh", "meet"]

_LOOK_S = 0.01  # an address that nobody listens on yet cannot be waited for, only tried again
_CREDENTIALS = struct.Struct("3i")
_LONGEST_JOB = 64  # an abstract address has room for 107 bytes

Mesh = dict[int, socket.socket]


def meet(me: Membership, *, deadline_s: float) -> Mesh:
    """The socket to every other peer of ``me.view``, by rank; the caller closes them.

    Raises: ``DeadlineExceeded`` with the ranks that did not come within ``deadline_s`` seconds; ``PeerFailure`` for a
    peer that hangs up or does not know the job's secret; ``UsageError`` if another process listens as this peer.
    """
    deadline = time.monotonic() + deadline_s
    met: Mesh = {}
    refused: list[str] = []
    with ExitStack() as undo, _listen(me) as listening:
        undo.callback(_close, met)
        while missing := set(range(me.size)) - {me.rank, *met}:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(_late(me, missing, deadline_s, refused))
            met |= {rank: made for rank in missing if rank < me.rank and (made := _try_call(me, rank, deadline))}
            met |= _try_answer(me, listening, deadline, refused)
        undo.pop_all()
    return met


def _close(met: Mesh) -> None:
    for connection in met.values():
        connection.close()


def _address(me: Membership, rank: int) -> str:
    return f"\0kungfu-{me.job}-{me.view}-{rank}"


def _listen(me: Membership) -> socket.socket:
    if len(me.job.encode()) > _LONGEST_JOB:
        raise UsageError(f"a job's name has at most {_LONGEST_JOB} bytes, {me.job!r} has {len(me.job.encode())}")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(_address(me, me.rank))
        listening.listen(me.size)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"this peer cannot listen as rank {me.rank} of view {me.view} of job {me.job!r} ({error.strerror}): "
            "is another process running as the same peer?"
        ) from error
    return listening


def _try_call(me: Membership, rank: int, deadline: float) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_patience(deadline))
    with ExitStack() as undo:
        undo.callback(connection.close)
        try:
            connection.connect(_address(me, rank))
            _refuse_other_users(connection)
            call(connection, me=me, listener=rank)
        except (ConnectionRefusedError, BlockingIOError, TimeoutError):
            return None  # not there yet, or busy: the deadline ends this
        except ConnectionError as error:
            raise PeerFailure(f"rank {rank} closed its connection while view {me.view} met") from error
        undo.pop_all()
    return connection


def _try_answer(me: Membership, listening: socket.socket, deadline: float, refused: list[str]) -> Mesh:
    if not select.select([listening], [], [], _LOOK_S)[0]:
        return {}
    connection, _ = listening.accept()
    connection.settimeout(_patience(deadline))
    with ExitStack() as undo:
        undo.callback(connection.close)
        try:
            _refuse_other_users(connection)
            caller = answer(connection, me=me)
        except (PeerFailure, ConnectionError, TimeoutError) as error:
            refused.append(str(error))  # a stranger must not be able to end the meeting
            return {}
        undo.pop_all()
    return {caller: connection}


def _patience(deadline: float) -> float:
    """Half of what is left: one silent connection cannot use up the time of the others."""
    return max((deadline - time.monotonic()) / 2, _LOOK_S)


def _refuse_other_users(connection: socket.socket) -> None:
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.geteuid():
        raise PeerFailure(f"a process of user {user} is not a peer of a job of user {os.geteuid()}")


def _late(me: Membership, missing: set[int], waited_s: float, refused: list[str]) -> str:
    ranks = ", ".join(f"rank {rank}" for rank in sorted(missing))
    text = f"waited {waited_s:.1f} s for {ranks} to meet in view {me.view} of job {me.job!r}"
    return text + (f"; refused {len(refused)} connections, the last because {refused[-1]}" if refused else "")
