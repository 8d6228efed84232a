"""The shared state, fetched in slices from several servers of this process."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import InternalError, PeerFailure
from kungfu.runtime.deciding.view import Peer, View
from kungfu.runtime.peer.replicate import chunks, differing, fetch
from kungfu.runtime.peer.service import PeerService
from kungfu.runtime.wire import rpc
from kungfu.runtime.wire.messages_pb2_grpc import add_PeerServiceServicer_to_server

SECRET = "ab" * 16
CONTENT = random.Random(1).randbytes(5 * (1 << 20) + 12345)


@dataclass
class State:
    """One variable of bytes."""

    content: bytes

    def total_bytes(self) -> int:
        return len(self.content)

    def read(self, start: int, stop: int) -> bytes:
        return self.content[start:stop]

    def fill(self, content: memoryview) -> None:
        self.content = bytes(content)

    def digest(self) -> dict[str, int]:
        return {"w": zlib.crc32(self.content)}

    def rescaled(self) -> None:
        """Nothing of it depends on the view."""


class Log(State):
    """Remembers which parts were read."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.parts: list[tuple[int, int]] = []

    def read(self, start: int, stop: int) -> bytes:
        self.parts.append((start, stop))
        return super().read(start, stop)


class Cut(State):
    """Gives less than it is asked for."""

    def read(self, start: int, stop: int) -> bytes:
        return super().read(start, stop)[:-10]


class Spilling(State):
    """Gives more than it is asked for."""

    def read(self, start: int, stop: int) -> bytes:
        return super().read(start, stop) + b"surplus"


class Dying(State):
    """Fails after the first megabyte."""

    def read(self, start: int, stop: int) -> bytes:
        if len(self.content[start:stop]) < 1 << 20:
            raise OSError("this disk is gone")
        return super().read(start, stop)


def serve(service: Any, stack: ExitStack) -> str:
    server = rpc.serve(
        lambda grpc_server: add_PeerServiceServicer_to_server(service, grpc_server),
        host="127.0.0.1",
        secret=SECRET,
        threads=4,
    )
    stack.callback(server.stop)
    return server.address


def fetched(states: Sequence[State | None], *, blank: int, secret: str = SECRET) -> State:
    """The state of a joiner, the last rank of a view, after it has fetched it from ``states``."""
    with ExitStack() as stack:
        addresses = [serve(service_of(state), stack) for state in states]
        view = View(2, tuple(Peer(rank, address) for rank, address in enumerate([*addresses, "joiner:1"])))
        joiner = State(bytes(blank))
        fetch(joiner, view, range(len(states)), secret=secret, deadline_s=10.0)
    return joiner


def service_of(state: State | None) -> PeerService:
    service = PeerService(deadline_s=10.0, on_offer=lambda: None, rendezvous=lambda size: "")
    service.state = state
    return service


def test_a_joiner_holds_what_the_sources_hold_each_having_given_a_third() -> None:
    sources = [Log(CONTENT) for _ in range(3)]
    joiner = fetched(sources, blank=len(CONTENT))
    assert joiner.content == CONTENT
    given = [sum(stop - start for start, stop in source.parts) for source in sources]
    assert sum(given) == len(CONTENT)
    assert max(given) - min(given) <= 1


@pytest.mark.parametrize("content", [b"", b"ab", bytes(range(200))])
def test_a_state_smaller_than_its_sources_comes_whole(content: bytes) -> None:
    assert fetched([State(content) for _ in range(3)], blank=len(content)).content == content


def test_a_source_that_sends_too_little_is_named_with_what_came() -> None:
    third = -(-len(CONTENT) // 3)
    with pytest.raises(InternalError, match=rf"rank 1, sending bytes {third} to .*: \d+ of {third} bytes came"):
        fetched([State(CONTENT), Cut(CONTENT), State(CONTENT)], blank=len(CONTENT))


def test_a_source_that_sends_too_much_is_named_with_what_came() -> None:
    with pytest.raises(InternalError, match=r"rank 0, sending bytes 0 to 50 of the state: 57 of 50 bytes came"):
        fetched([Spilling(bytes(100)), State(bytes(100))], blank=100)


def test_a_source_that_dies_in_the_middle_is_named() -> None:
    with pytest.raises(PeerFailure, match=r"lost rank 2, sending bytes \d+ to \d+ of the state"):
        fetched([State(CONTENT), State(CONTENT), Dying(CONTENT)], blank=len(CONTENT))


def test_a_source_that_is_gone_is_named() -> None:
    with ExitStack() as stack:
        gone = serve(service_of(State(CONTENT)), stack)
    with ExitStack() as stack:
        view = View(2, (Peer(0, serve(service_of(State(CONTENT)), stack)), Peer(1, gone), Peer(2, "joiner:1")))
        with pytest.raises(PeerFailure, match="lost rank 1, sending bytes"):
            fetch(State(bytes(len(CONTENT))), view, [0, 1], secret=SECRET, deadline_s=10.0)


def test_a_source_without_a_state_says_so() -> None:
    with pytest.raises(PeerFailure, match="lost rank 0, sending bytes 0 to 9 of the state: this peer has no state yet"):
        fetched([None], blank=9)


def test_a_joiner_that_fails_to_fetch_keeps_the_state_that_it_had() -> None:
    with ExitStack() as stack:
        view = View(2, (Peer(0, serve(service_of(Cut(bytes(100))), stack)), Peer(1, "joiner:1")))
        joiner = State(b"x" * 100)
        with pytest.raises(InternalError):
            fetch(joiner, view, [0], secret=SECRET, deadline_s=10.0)
    assert joiner.content == b"x" * 100


@given(st.integers(0, 4 << 20), st.integers(0, 2 << 20))
def test_chunks_are_at_most_a_megabyte_and_lie_end_to_end(start: int, length: int) -> None:
    stop = min(start + length, len(CONTENT))
    parts = [chunk.data for chunk in chunks(State(CONTENT), start, stop)]
    assert b"".join(parts) == CONTENT[start:stop]
    assert all(0 < len(part) <= 1 << 20 for part in parts)


@pytest.mark.parametrize(
    ("digests", "difference"),
    [
        ({0: {"w": 1, "b": 2}, 1: {"b": 2, "w": 1}}, None),
        ({3: {"w": 1}}, None),
        ({0: {"w": 1}, 1: {"w": 1}, 2: {"w": 9}}, "w of rank 2 is not that of rank 0"),
        ({1: {"w": 1}, 2: {"w": 9}}, "w of rank 2 is not that of rank 1"),
        ({0: {"a": 1, "b": 1}, 1: {"a": 1, "b": 2}, 2: {"a": 2, "b": 1}}, "a of rank 2 is not that of rank 0"),
        ({0: {"w": 1, "b": 2}, 1: {"w": 1}}, "b of rank 1 is not that of rank 0"),
        ({0: {"w": 1}, 1: {"w": 1, "b": 2}}, "b of rank 1 is not there on rank 0"),
    ],
)
def test_the_first_variable_that_differs_is_named_with_its_rank(
    digests: dict[int, dict[str, int]], difference: str | None
) -> None:
    assert differing(digests) == difference
