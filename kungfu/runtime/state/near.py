"""The state between two processes of one host: a small ring of shared memory, passed over a proven socket.

The taker calls the giver at an abstract Unix address, both prove that they know the job's secret, the taker says which
bytes it wants, the giver passes the memory. Then compiled code on both sides copies block after block (native/state).
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
from contextlib import contextmanager

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure
from kungfu.native import load_state
from kungfu.runtime.core.transfer import SourceSlice
from kungfu.runtime.ipc import handshake, memfd, unix_socket
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.place import Place

__all__ = ["giving", "take"]

_REQUEST = struct.Struct("!qq")
_FIRST_LOOK_S, _LAST_LOOK_S = 0.0005, 0.01  # an address that nobody listens on yet can only be tried again
_HUNG_UP, _LATE = 1, 2


@contextmanager
def giving(buffers: Buffers, place: Place, takers: Sequence[int], *, failures: list[str]) -> Iterator[None]:
    """Within the block the ranks ``takers`` of this host can take their parts; what failed is in ``failures`` then."""
    if not takers:
        yield
        return
    connections: list[socket.socket] = []
    who = f"rank {place.rank} of view {place.view.version}, giving its state,"
    name, secret = _name(place, place.rank), bytes.fromhex(place.secret)
    listening = unix_socket.listen(place.job, name, secret=secret, who=who, backlog=len(takers))
    with listening, ThreadPoolExecutor(len(takers) + 1, thread_name_prefix="kungfu-give") as pool:

        def accept() -> None:
            while (connection := _accepted(listening)) is not None:
                connections.append(connection)
                pool.submit(_serve, connection, buffers, place, failures)

        accepting = threading.Thread(target=accept, name="kungfu-give-accept")
        accepting.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in connections:
                _hang_up(connection)


def take(
    buffers: Buffers,
    part: SourceSlice,
    place: Place,
    *,
    patience_s: float,
    on_open: Callable[[Callable[[], None]], bool],
) -> None:
    """Takes ``part`` from a peer of this host, who begins to give within ``patience_s``.

    ``on_open`` is told how to end the passage early; it says false where that has been asked for already. Raises
    ``DeadlineExceeded`` and ``PeerFailure`` that name the giver, its bytes, and how many came.
    """
    connection = _called(part, place, patience_s, on_open)
    with connection:
        if not on_open(lambda: _hang_up(connection)):
            return
        library = load_state()
        ring = _asked(connection, part, place, library.kungfu_transfer_ring_bytes())
        outcome, done = _carried(library.kungfu_receive_range, buffers, part, connection, ring, place)
    _raise(outcome, part.source, named(part), f"{done} of {part.stop - part.start} bytes came", place)


def _asked(connection: socket.socket, part: SourceSlice, place: Place, ring_bytes: int) -> int:
    """Says which bytes are wanted; the memory through which they will come."""
    try:
        handshake.call(connection, me=_membership(place), listener=part.source)
        connection.sendall(_REQUEST.pack(part.start, part.stop))
        return memfd.receive(connection, bytes_=ring_bytes, deadline_s=place.deadline_s, rank=part.source)
    except (TimeoutError, DeadlineExceeded) as error:
        raise _late(part.source, f"{named(part)} to answer", place.deadline_s, place) from error
    except (ConnectionError, PeerFailure) as error:
        raise PeerFailure(f"lost {named(part)}: {error}", ranks=[part.source], view=place.view.version) from error


def named(part: SourceSlice) -> str:
    """How errors speak of who gives a part."""
    return f"rank {part.source}, sending bytes {part.start} to {part.stop} of the state"


def _called(
    part: SourceSlice, place: Place, patience_s: float, on_open: Callable[[Callable[[], None]], bool]
) -> socket.socket:
    deadline, look_s = time.monotonic() + patience_s, _FIRST_LOOK_S
    name, secret = _name(place, part.source), bytes.fromhex(place.secret)
    while (left_s := deadline - time.monotonic()) > 0 and on_open(lambda: None):
        connection = unix_socket.connect(place.job, name, secret=secret, timeout_s=left_s)
        if connection is not None:
            return connection
        time.sleep(min(look_s, left_s))
        look_s = min(2 * look_s, _LAST_LOOK_S)
    raise _late(part.source, f"{named(part)} to listen", patience_s, place)


def _accepted(listening: socket.socket) -> socket.socket | None:
    try:
        return listening.accept()[0]
    except OSError:
        return None  # shut down: the block is over


def _serve(connection: socket.socket, buffers: Buffers, place: Place, failures: list[str]) -> None:
    connection.settimeout(place.deadline_s)
    with connection:
        try:
            _give(connection, buffers, place)
        except (KungfuError, OSError) as error:
            failures.append(str(error))


def _give(connection: socket.socket, buffers: Buffers, place: Place) -> None:
    unix_socket.refuse_other_users(connection)
    rank = handshake.answer(connection, me=_membership(place))
    part = SourceSlice(rank, *_REQUEST.unpack(handshake.receive(connection, _REQUEST.size)))
    if not 0 <= part.start <= part.stop <= buffers.total_bytes:
        raise PeerFailure(f"rank {rank} asked for bytes {part.start} to {part.stop} of {buffers.total_bytes}")
    library = load_state()
    ring = memfd.make(library.kungfu_transfer_ring_bytes())
    try:
        memfd.send(connection, descriptor=ring, rank=rank)
    except PeerFailure:
        os.close(ring)
        raise
    outcome, done = _carried(library.kungfu_send_range, buffers, part, connection, ring, place)
    what = f"rank {rank}, taking bytes {part.start} to {part.stop} of the state"
    _raise(outcome, rank, what, f"it has {done} of {part.stop - part.start} bytes", place)


def _carried(
    carry: Callable[..., int], buffers: Buffers, part: SourceSlice, connection: socket.socket, ring: int, place: Place
) -> tuple[int, int]:
    done, table = ctypes.c_int64(), buffers.table
    try:
        outcome = carry(
            table.ctypes.data,
            len(table),
            part.start,
            part.stop,
            ring,
            connection.fileno(),
            place.deadline_s,
            ctypes.byref(done),
        )
    finally:
        os.close(ring)
    return outcome, done.value


def _late(rank: int, what: str, waited_s: float, place: Place) -> DeadlineExceeded:
    text = f"waited {waited_s:.1f} s for {what}"
    return DeadlineExceeded(text, waiting_for=[rank], waited_s=waited_s, view=place.view.version)


def _raise(outcome: int, rank: int, what: str, how_far: str, place: Place) -> None:
    """What the compiled code's outcome means: ``rank`` is the peer at the other end."""
    if outcome == _HUNG_UP:
        raise PeerFailure(f"lost {what}: it hung up; {how_far}", ranks=[rank], view=place.view.version)
    if outcome == _LATE:
        raise _late(rank, f"{what}: {how_far}", place.deadline_s, place)
    if outcome != 0:
        raise InternalError(f"the memory shared with {what} cannot be mapped")


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already


def _name(place: Place, rank: int) -> str:
    return f"{place.view.version}-{rank}-{place.what or 'state'}"


def _membership(place: Place) -> handshake.Membership:
    return handshake.Membership(
        job=place.job,
        view=place.view.version,
        rank=place.rank,
        size=place.view.size,
        secret=bytes.fromhex(place.secret),
    )
