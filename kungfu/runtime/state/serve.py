"""The sending side of a transfer: while a view starts, a peer serves its memory to the peers that lack the state."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.core.transfer import near_of, queue_of
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.replicated_state import StateMemory, TransferContext
from kungfu.runtime.state.shared_memory_transfer import serving_host

_CHUNK_BYTES = 1 << 20


@dataclass
class _Served:
    """The memory being served, and the ranks that have not received their parts yet, in order."""

    version: int
    purpose: str
    buffers: Buffers
    waiting: list[int] = field(default_factory=list)


class StateServer:
    """Serves the state over the network to one rank after another, since all peers of other hosts share one link."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._served: _Served | None = None

    @contextmanager
    def offering(self, version: int, buffers: Buffers, ranks: Sequence[int], *, purpose: str = "") -> Iterator[None]:
        """Within the block, serves the memory to ``ranks`` of a view, in this order; see ``TransferContext``."""
        self._set(_Served(version, purpose, buffers, list(ranks)))
        try:
            yield
        finally:
            self._set(None)

    def stream(self, request: pb.FetchRequest, *, deadline_s: float) -> Iterator[pb.StateChunk]:
        """Yields a range of the state in messages of one megabyte, once it is the requesting rank's turn.

        Raises:
            DeadlineExceeded: The turn did not come within ``deadline_s`` seconds.
            PeerFailure: The rank is not expected, or requests bytes outside the state.
        """
        buffers = self._await_turn(request, deadline_s)
        try:
            for offset in range(request.start, request.stop, _CHUNK_BYTES):
                yield pb.StateChunk(data=buffers.read(offset, min(request.stop, offset + _CHUNK_BYTES)))
        finally:
            self._finish(request)

    def _set(self, served: _Served | None) -> None:
        with self._changed:
            self._served = served
            self._changed.notify_all()

    def _await_turn(self, request: pb.FetchRequest, deadline_s: float) -> Buffers:
        with self._changed:
            # This peer has not entered the view, or an earlier rank has not received its part.
            if not self._changed.wait_for(lambda: not self._awaited(request), timeout=deadline_s):
                raise DeadlineExceeded(f"waited {deadline_s:.1f} s for {self._awaited(request)}")
            served = self._served
            assert served is not None
            # The request is for an older view, from a rank that the plan omits, or for bytes outside the state.
            known = served.version == request.version and served.waiting[:1] == [request.rank]
            if not known or not 0 <= request.start <= request.stop <= served.buffers.total_bytes:
                raise PeerFailure(
                    f"rank {request.rank} asked for bytes {request.start} to {request.stop} of view {request.version}, "
                    f"but view {served.version} has {served.buffers.total_bytes}, for {served.waiting}"
                )
            return served.buffers

    def _awaited(self, request: pb.FetchRequest) -> str:
        """The event for which a request has to wait, as text; '' if the request can be served or refused now."""
        served = self._served
        # The requesting peer is already in a view that this peer has not entered yet.
        if served is None or served.version < request.version:
            return f"this peer to be in view {request.version}"
        # The request is for another transfer of the same view, an earlier or a later one.
        if served.version == request.version and served.purpose != request.purpose:
            return f"this peer to give its {request.purpose or 'state'} in view {request.version}"
        # A request of an older view is refused. A request of this view is served in turn, or refused after all others.
        if served.version > request.version or served.waiting[:1] in ([request.rank], []):
            return ""
        return f"rank {served.waiting[0]} to take its part of the state first"

    def _finish(self, request: pb.FetchRequest) -> None:
        """Passes the turn to the next rank, after the current rank has received everything or closed its connection."""
        with self._changed:
            served = self._served
            # The view is still the same, and this rank was expected.
            if served is not None and served.version == request.version and request.rank in served.waiting:
                served.waiting.remove(request.rank)
            self._changed.notify_all()


@contextmanager
def serving(state: StateMemory, context: TransferContext, *, server: StateServer) -> Iterator[None]:
    """Serves the state of this peer to the peers of ``context.view`` that lack it, within the block.

    Raises:
        BaseException: The error raised in the block, with a note for each peer whose transfer failed.
    """
    transfers = context.transfers(0 if len(context.sources) == context.view.size else state.readable().total_bytes)
    same_host = near_of(context.me.rank, context.view, transfers)
    other_hosts = queue_of(context.me.rank, context.view, transfers)
    # By the plan, no peer fetches from this rank.
    if not same_host and not other_hosts:
        yield
        return
    buffers, failures = state.readable(), list[str]()
    try:
        with (
            server.offering(context.view.version, buffers, other_hosts, purpose=context.purpose),
            serving_host(buffers, context, same_host, failures=failures),
        ):
            yield
    # The block failed, perhaps because a peer could not fetch its part: the notes name such failures.
    except BaseException as error:
        for failure in failures:
            error.add_note(failure)
        raise
