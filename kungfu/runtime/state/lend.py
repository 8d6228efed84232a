"""The giver's side: while a view starts, this peer lends its memory to those who lack the state."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.core.transfer import near_of, queue_of
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.state import near
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.place import Place
from kungfu.runtime.state.state import Memory

__all__ = ["Desk", "lent"]

_CHUNK_BYTES = 1 << 20


@dataclass
class _Lending:
    version: int
    what: str
    buffers: Buffers
    waiting: list[int] = field(default_factory=list)


class Desk:
    """What this peer gives over the network: its link is one, so takers of other hosts go one after the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lending: _Lending | None = None

    @contextmanager
    def open(self, version: int, buffers: Buffers, takers: Sequence[int], *, what: str = "") -> Iterator[None]:
        """Within the block the ranks ``takers`` of view ``version`` are served, in this order; ``what`` is as that
        of a ``Place``."""
        self._set(_Lending(version, what, buffers, list(takers)))
        try:
            yield
        finally:
            self._set(None)

    def serve(self, request: pb.Slice, *, deadline_s: float) -> Iterator[pb.Chunk]:
        """A part of the state in messages of one megabyte, once it is the turn of who asks.

        Raises ``DeadlineExceeded`` when that takes longer than ``deadline_s``, ``PeerFailure`` for a rank that is not
        expected.
        """
        buffers = self._turn(request, deadline_s)
        try:
            for offset in range(request.start, request.stop, _CHUNK_BYTES):
                yield pb.Chunk(data=buffers.read(offset, min(request.stop, offset + _CHUNK_BYTES)))
        finally:
            self._served(request)

    def _set(self, lending: _Lending | None) -> None:
        with self._changed:
            self._lending = lending
            self._changed.notify_all()

    def _turn(self, request: pb.Slice, deadline_s: float) -> Buffers:
        def first() -> bool:
            lending = self._lending
            if lending is None or lending.version < request.version:
                return False
            if lending.version == request.version and lending.what != request.what:
                return False  # the transfer before, or the one after
            return lending.version > request.version or lending.waiting[:1] in ([request.rank], [])

        with self._changed:
            if not self._changed.wait_for(first, timeout=deadline_s):
                raise DeadlineExceeded(f"waited {deadline_s:.1f} s for {self._awaited(request)}")
            lending = self._lending
            assert lending is not None
            known = lending.version == request.version and lending.waiting[:1] == [request.rank]
            if not known or not 0 <= request.start <= request.stop <= lending.buffers.total_bytes:
                raise PeerFailure(
                    f"rank {request.rank} asked for bytes {request.start} to {request.stop} of view {request.version}, "
                    f"but view {lending.version} has {lending.buffers.total_bytes}, for {lending.waiting}"
                )
            return lending.buffers

    def _awaited(self, request: pb.Slice) -> str:
        if self._lending is None or self._lending.version < request.version:
            return f"this peer to be in view {request.version}"
        if self._lending.what != request.what or not self._lending.waiting:
            return f"this peer to give its {request.what or 'state'} in view {request.version}"
        return f"rank {self._lending.waiting[0]} to take its part of the state first"

    def _served(self, request: pb.Slice) -> None:
        with self._changed:
            lending = self._lending
            if lending is not None and lending.version == request.version and request.rank in lending.waiting:
                lending.waiting.remove(request.rank)
            self._changed.notify_all()


@contextmanager
def lent(state: Memory, place: Place, *, desk: Desk) -> Iterator[None]:
    """Within the block those peers of ``place.view`` who lack the state can take it from this one.

    An error that ends the block notes which of them failed.
    """
    transfers = place.transfers(0 if len(place.sources) == place.view.size else state.lent().total_bytes)
    takers = near_of(place.rank, place.view, transfers)
    queue = queue_of(place.rank, place.view, transfers)
    if not takers and not queue:
        yield
        return
    buffers, failures = state.lent(), list[str]()
    try:
        with (
            desk.open(place.view.version, buffers, queue, what=place.what),
            near.giving(buffers, place, takers, failures=failures),
        ):
            yield
    except BaseException as error:
        for failure in failures:
            error.add_note(failure)
        raise
