"""The shared state on its way to a joiner: one run of bytes, fetched in parallel slices from several peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from kungfu.errors import InternalError
from kungfu.runtime.deciding.view import View, even_slices
from kungfu.runtime.wire import messages_pb2 as pb
from kungfu.runtime.wire import rpc
from kungfu.runtime.wire.messages_pb2_grpc import PeerServiceStub

__all__ = ["ReplicatedState", "chunks", "differing", "fetch"]

_CHUNK_BYTES = 1 << 20


class ReplicatedState(Protocol):
    """What a peer replicates. Offsets are bytes into the whole state, variable after variable."""

    def total_bytes(self) -> int:
        """The size of the whole state."""

    def read(self, start: int, stop: int) -> bytes:
        """A part of the state as it is now."""

    def fill(self, content: memoryview) -> None:
        """Replaces the whole state."""

    def digest(self) -> dict[str, int]:
        """A checksum of every shared variable, by name."""

    def rescaled(self) -> None:
        """The view has changed: what declares so starts anew."""


def chunks(state: ReplicatedState, start: int, stop: int) -> Iterator[pb.Chunk]:
    """A slice of the state in messages of one megabyte."""
    for offset in range(start, stop, _CHUNK_BYTES):
        yield pb.Chunk(data=state.read(offset, min(stop, offset + _CHUNK_BYTES)))


def fetch(state: ReplicatedState, view: View, sources: Sequence[int], *, secret: str, deadline_s: float) -> None:
    """Fills ``state`` with that of ``sources`` (ranks of ``view``), each giving an even slice at the same time."""
    content = bytearray(state.total_bytes())
    slices = [part for part in even_slices(len(content), sources) if part[1] < part[2]]

    def take(part: tuple[int, int, int]) -> None:
        source, start, stop = part
        _fetch_slice(
            memoryview(content)[start:stop],
            view.peers[source].address,
            pb.Slice(version=view.version, start=start, stop=stop),
            secret=secret,
            deadline_s=deadline_s,
            what=f"rank {source}, sending bytes {start} to {stop} of the state",
        )

    with ThreadPoolExecutor(max(1, len(slices)), thread_name_prefix="kungfu-fetch") as pool:
        list(pool.map(take, slices))
    state.fill(memoryview(content))


def _fetch_slice(
    target: memoryview, address: str, part: pb.Slice, *, secret: str, deadline_s: float, what: str
) -> None:
    with rpc.connect(address, secret=secret) as channel:
        offset = 0
        try:
            for chunk in PeerServiceStub(channel).Fetch(part, timeout=deadline_s):
                start, offset = offset, offset + len(chunk.data)
                if offset > len(target):
                    break
                target[start:offset] = chunk.data
        except rpc.RpcError as error:
            raise rpc.named(error, what=what, deadline_s=deadline_s) from error
    if offset != len(target):
        raise InternalError(f"{what}: {offset} of {len(target)} bytes came")


def differing(digests: Mapping[int, Mapping[str, int]]) -> str | None:
    """The first variable on which the peers disagree, and who differs from the lowest rank; ``None`` if all agree.

    >>> differing({0: {"w": 1, "b": 2}, 1: {"w": 1, "b": 3}})
    'b of rank 1 is not that of rank 0'
    """
    reference, *others = sorted(digests)
    for name, checksum in digests[reference].items():
        for rank in others:
            if digests[rank].get(name) != checksum:
                return f"{name} of rank {rank} is not that of rank {reference}"
    for rank in others:
        if extra := set(digests[rank]) - set(digests[reference]):
            return f"{min(extra)} of rank {rank} is not there on rank {reference}"
    return None
