"""The transfer of the state between two processes of one host: a small ring of shared memory, passed over a socket.

The receiver connects to the source at a Unix address, and both prove that they know the job's secret. The receiver
sends the requested range of bytes, and the source passes the memory. Then compiled code on both sides copies block
after block (native/state/transfer.cc).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure
from kungfu.native import load_state
from kungfu.runtime.core.transfer import SourceSlice
from kungfu.runtime.ipc import handshake, memfd, unix_socket
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.replicated_state import TransferContext

_REQUEST = struct.Struct("!qq")
_FIRST_LOOK_S, _LAST_LOOK_S = 0.0005, 0.01  # the waits before an address without a listener is tried again
_HUNG_UP, _LATE = 1, 2


@contextmanager
def serving_host(
    buffers: Buffers, context: TransferContext, ranks: Sequence[int], *, failures: list[str]
) -> Iterator[None]:
    """Serves the ``ranks`` of this host within the block; adds the errors of failed transfers to ``failures``."""
    # By the plan, no peer of this host fetches from this peer.
    if not ranks:
        yield
        return
    connections: list[socket.socket] = []
    who = f"rank {context.me.rank} of view {context.view.version}, giving its state,"
    name = _address(context, context.me.rank)
    listening = unix_socket.listen(context.me.job, name, secret=context.me.secret, who=who, backlog=len(ranks))
    with listening, ThreadPoolExecutor(len(ranks) + 1, thread_name_prefix="kungfu-serve") as pool:

        def accept() -> None:
            while (connection := _accept(listening)) is not None:
                connections.append(connection)
                pool.submit(_serve, connection, buffers, context, failures)

        accepting = threading.Thread(target=accept, name="kungfu-serve-accept")
        accepting.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in connections:
                _hang_up(connection)


def receive_over_memory(
    buffers: Buffers,
    part: SourceSlice,
    context: TransferContext,
    *,
    patience_s: float,
    on_open: Callable[[Callable[[], None]], bool],
) -> None:
    """Receives ``part`` through shared memory from a peer of this host.

    Args:
        patience_s: Seconds within which the source has to listen.
        on_open: Receives the function that ends the transfer early; returns False if the end was already requested.

    Raises:
        DeadlineExceeded: The source did not listen, answer or send in time.
        PeerFailure: The source closed the connection. Both errors name the source's rank, its range of bytes, and the
            bytes received.
    """
    with _connect(part, context, patience_s, on_open) as connection:
        # The transfer was cut while connecting.
        if not on_open(lambda: _hang_up(connection)):
            return
        library = load_state()
        ring = _request(connection, part, context, library.kungfu_transfer_ring_bytes())
        outcome, done = _transfer(library.kungfu_receive_range, buffers, part, connection, ring, context)
    _raise_for(outcome, part.source, in_words(part), f"{done} of {part.stop - part.start} bytes came", context)


def _request(connection: socket.socket, part: SourceSlice, context: TransferContext, ring_bytes: int) -> int:
    """Requests the bytes of a part; returns the descriptor of the memory through which they will arrive."""
    try:
        handshake.call(connection, me=context.me, listener=part.source)
        connection.sendall(_REQUEST.pack(part.start, part.stop))
        return memfd.receive(connection, bytes_=ring_bytes, deadline_s=context.deadline_s, rank=part.source)
    # The source listens but does not answer.
    except (TimeoutError, DeadlineExceeded) as error:
        raise _late(part.source, f"{in_words(part)} to answer", context.deadline_s, context) from error
    # The source has ended, or closed the connection.
    except (ConnectionError, PeerFailure) as error:
        raise PeerFailure(f"lost {in_words(part)}: {error}", ranks=[part.source], view=context.view.version) from error


def in_words(part: SourceSlice) -> str:
    """The part and its source as text, for errors."""
    return f"rank {part.source}, sending bytes {part.start} to {part.stop} of the state"


def _connect(
    part: SourceSlice, context: TransferContext, patience_s: float, on_open: Callable[[Callable[[], None]], bool]
) -> socket.socket:
    deadline, look_s = time.monotonic() + patience_s, _FIRST_LOOK_S
    name = _address(context, part.source)
    while (left_s := deadline - time.monotonic()) > 0 and on_open(lambda: None):
        connection = unix_socket.connect(context.me.job, name, secret=context.me.secret, timeout_s=left_s)
        if connection is not None:
            return connection
        # The source has not entered the view yet.
        time.sleep(min(look_s, left_s))
        look_s = min(2 * look_s, _LAST_LOOK_S)
    raise _late(part.source, f"{in_words(part)} to listen", patience_s, context)


def _accept(listening: socket.socket) -> socket.socket | None:
    try:
        return listening.accept()[0]
    # The listening socket was shut down: the block has ended.
    except OSError:
        return None


def _serve(connection: socket.socket, buffers: Buffers, context: TransferContext, failures: list[str]) -> None:
    connection.settimeout(context.deadline_s)
    with connection:
        try:
            _send(connection, buffers, context)
        # The receiver is gone or late; the others are still served.
        except (KungfuError, OSError) as error:
            failures.append(str(error))


def _send(connection: socket.socket, buffers: Buffers, context: TransferContext) -> None:
    unix_socket.refuse_other_users(connection)
    rank = handshake.answer(connection, me=context.me)
    part = SourceSlice(rank, *_REQUEST.unpack(handshake.receive(connection, _REQUEST.size)))
    if not 0 <= part.start <= part.stop <= buffers.total_bytes:
        raise PeerFailure(f"rank {rank} asked for bytes {part.start} to {part.stop} of {buffers.total_bytes}")
    library = load_state()
    ring = memfd.make(library.kungfu_transfer_ring_bytes())
    try:
        memfd.send(connection, descriptor=ring, rank=rank)
    except PeerFailure:
        os.close(ring)  # the receiver, the only other user of the ring, is gone
        raise
    outcome, done = _transfer(library.kungfu_send_range, buffers, part, connection, ring, context)
    what = f"rank {rank}, taking bytes {part.start} to {part.stop} of the state"
    _raise_for(outcome, rank, what, f"it has {done} of {part.stop - part.start} bytes", context)


def _transfer(
    carry: Callable[..., int],
    buffers: Buffers,
    part: SourceSlice,
    connection: socket.socket,
    ring: int,
    context: TransferContext,
) -> tuple[int, int]:
    """Transfers a part by compiled code; returns the code's outcome and the number of bytes transferred."""
    done, table = ctypes.c_int64(), buffers.table
    memory = table.ctypes.data, len(table), part.start, part.stop
    try:
        outcome = carry(*memory, ring, connection.fileno(), context.deadline_s, ctypes.byref(done))
    finally:
        os.close(ring)
    return outcome, done.value


def _raise_for(outcome: int, rank: int, what: str, how_far: str, context: TransferContext) -> None:
    """Raises the error for an outcome of the compiled code; ``rank`` is the peer at the other end."""
    # The process at the other end has ended, or has given up.
    if outcome == _HUNG_UP:
        raise PeerFailure(f"lost {what}: it hung up; {how_far}", ranks=[rank], view=context.view.version)
    # The process at the other end is alive but makes no progress.
    if outcome == _LATE:
        raise _late(rank, f"{what}: {how_far}", context.deadline_s, context)
    if outcome != 0:
        raise InternalError(f"the memory shared with {what} cannot be mapped")


def _late(rank: int, what: str, waited_s: float, context: TransferContext) -> DeadlineExceeded:
    text = f"waited {waited_s:.1f} s for {what}"
    return DeadlineExceeded(text, waiting_for=[rank], waited_s=waited_s, view=context.view.version)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # already closed
        connection.shutdown(socket.SHUT_RDWR)


def _address(context: TransferContext, rank: int) -> str:
    return f"{context.view.version}-{rank}-{context.purpose or 'state'}"
