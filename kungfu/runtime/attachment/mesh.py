"""One authenticated socket to each other peer of a view, on one machine.

Peers listen on abstract Unix addresses, which are not files, so nothing is left to unlink. Each peer calls the lower
ranks and answers the higher ranks. A caller waits only for lower ranks, so peers cannot deadlock.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.attachment.protocol import AbandonReason, no_abandon_reason
from kungfu.runtime.ipc.handshake import Credentials, answer, call
from kungfu.runtime.ipc.unix_socket import connect, listen, refuse_other_users

# The interval before an address without a listener is tried again: short at first, since peers arrive together.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.0005, 0.01

Mesh = dict[int, socket.socket]


def connect_mesh(me: Credentials, *, deadline_s: float, abandoned: AbandonReason = no_abandon_reason) -> Mesh:
    """Connects this peer to every other peer of its view.

    Args:
        deadline_s: Seconds within which all peers must connect.

    Returns:
        The sockets to the other peers, by rank; the caller closes the sockets.

    Raises:
        DeadlineExceeded: Some ranks did not connect; the error names them.
        PeerFailure: A peer closed its connection or does not know the secret, or ``abandoned`` returned this failure.
        UsageError: Another process listens as this peer.
    """
    deadline, look_s = time.monotonic() + deadline_s, _FIRST_LOOK_S
    connected: Mesh = {}
    refused: list[str] = []
    who = f"rank {me.rank} of view {me.view}"
    listener = listen(me.job, _name(me, me.rank), secret=me.secret, who=who, backlog=me.size)
    with ExitStack() as undo, listener as listening:
        undo.callback(close, connected)
        while missing := set(range(me.size)) - {me.rank, *connected}:
            # The job has given up this view, since one of its peers is gone.
            if (failure := abandoned()) is not None:
                raise failure
            if time.monotonic() > deadline:
                raise _late(me, missing, deadline_s, refused)
            # Calls lower ranks, answers higher ones, and repeats this at growing intervals.
            connected |= {rank: made for rank in missing if rank < me.rank and (made := _try_call(me, rank, deadline))}
            if select.select([listening], [], [], look_s)[0]:
                connected |= _try_answer(me, listening, deadline, refused)
            look_s = min(2 * look_s, _LAST_LOOK_S)
        undo.pop_all()
    return connected


def close(connected: Mesh) -> None:
    """Closes all sockets."""
    for connection in connected.values():
        connection.close()


def _name(me: Credentials, rank: int) -> str:
    return f"{me.view}-{rank}"


def _try_call(me: Credentials, rank: int, deadline: float) -> socket.socket | None:
    connection = connect(me.job, _name(me, rank), secret=me.secret, timeout_s=_patience(deadline))
    if connection is None:
        return None  # not listening yet, or busy: the deadline limits the wait
    with ExitStack() as undo:
        undo.callback(connection.close)
        try:
            call(connection, me=me, listener=rank)
        except (BlockingIOError, TimeoutError):  # the listener is handling another call: the call is repeated
            return None
        except ConnectionError as error:  # the listener has ended, or refuses this peer
            text = f"rank {rank} closed its connection while view {me.view} met"
            raise PeerFailure(text, ranks=[rank], view=me.view) from error
        undo.pop_all()
    return connection


def _try_answer(me: Credentials, listening: socket.socket, deadline: float, refused: list[str]) -> Mesh:
    connection, _ = listening.accept()
    connection.settimeout(_patience(deadline))
    with ExitStack() as undo:
        undo.callback(connection.close)
        try:
            refuse_other_users(connection)
            caller = answer(connection, me=me)
        except (PeerFailure, ConnectionError, TimeoutError) as error:
            refused.append(str(error))  # a stranger must not be able to end the rendezvous
            return {}
        undo.pop_all()
    return {caller: connection}


def _patience(deadline: float) -> float:
    """Half of the remaining seconds, so that one silent connection cannot use up the time of the other connections."""
    return max((deadline - time.monotonic()) / 2, _LAST_LOOK_S)


def _late(me: Credentials, missing: set[int], waited_s: float, refused: list[str]) -> DeadlineExceeded:
    ranks = ", ".join(f"rank {rank}" for rank in sorted(missing))
    text = f"waited {waited_s:.1f} s for {ranks} to meet in view {me.view} of job {me.job!r}"
    text += f"; refused {len(refused)} connections, the last because {refused[-1]}" if refused else ""
    return DeadlineExceeded(text, waiting_for=sorted(missing), waited_s=waited_s, view=me.view)
