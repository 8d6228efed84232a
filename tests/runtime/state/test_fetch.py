"""The state on its way, between peers in threads of this process: over shared memory, and over the network."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure
from kungfu.native import load_state
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import handshake, memfd, rpc, unix_socket
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceServicer, add_PeerServiceServicer_to_server
from kungfu.runtime.ipc.unix_socket import addresses
from kungfu.runtime.peer.peer_service import PeerService
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.fetch import fetch
from kungfu.runtime.state.replicated_state import TransferContext
from kungfu.runtime.state.serve import serving
from tests.runtime.expiring import expired_at
from tests.runtime.peer.held import Held

SECRET = "ab" * 16
JOB = f"fetch-{os.getpid()}"
CONTENT = np.random.default_rng(1).bytes(9 * (1 << 20) + 12345)
SHORT_S = 0.3
# All of these are this machine, but to the plan they are different hosts.
HOSTS = {"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}


def me(rank: int, size: int = 2, *, secret: bytes = bytes.fromhex(SECRET)) -> handshake.Credentials:
    return handshake.Credentials(JOB, 2, rank, size, secret)


class Cluster:
    """Peers on the hosts named by ``hosts``, one letter each; the ranks ``sources`` hold the state."""

    def __init__(self, hosts: str, sources: Sequence[int], stack: ExitStack, *, wait_s: float = 60.0) -> None:
        self._stack, self._wait_s, self._sources = stack, wait_s, sources
        self.services = [PeerService(deadline_s=wait_s, on_offer=lambda: None, prepare_attachment=str) for _ in hosts]
        addresses = [self.serve(service, HOSTS[host]) for service, host in zip(self.services, hosts, strict=True)]
        self.view = View(2, tuple(Peer(rank, address) for rank, address in enumerate(addresses)))

    def serve(self, service: Any, host: str) -> str:
        server = rpc.serve((add_PeerServiceServicer_to_server, service), host=host, secret=SECRET, threads=8)
        self._stack.callback(server.stop)
        return server.address

    def context(self, rank: int) -> TransferContext:
        return TransferContext(self.view, me(rank, self.view.size), self._sources, self._wait_s)

    def run(self, states: Sequence[Held]) -> list[Held | KungfuError]:
        """Every peer's state, or its error, after all of them did their part; nobody lends longer than is needed."""
        done = threading.Barrier(len(states))

        def part(rank: int) -> Held:
            context = self.context(rank)
            if not context.holds_state:
                fetch(states[rank], context)
            with serving(states[rank], context, server=self.services[rank].state_server):
                done.wait(180.0)
            return states[rank]

        with ThreadPoolExecutor(len(states)) as threads:
            running = [threads.submit(part, rank) for rank in range(len(states))]
            return [self._outcome(one, done) for one in running]

    def _outcome(self, running: Future[Held], done: threading.Barrier) -> Held | KungfuError:
        try:
            return running.result(180.0)
        except KungfuError as error:
            done.abort()
            return error


def replicated(hosts: str, sources: Sequence[int], content: bytes) -> list[Any]:
    states = [Held(content if rank in sources else bytes(len(content))) for rank in range(len(hosts))]
    with ExitStack() as stack:
        return Cluster(hosts, sources, stack).run(states)


@pytest.mark.parametrize(
    ("hosts", "sources"),
    [
        ("aa", [0]),
        ("aaa", [0, 1]),
        ("aaaa", [0, 2]),
        ("ab", [0]),
        ("aab", [0, 1]),
        ("aabb", [0, 1]),
        ("abc", [0]),
        ("abcabc", [0]),
        ("aaaaab", [0, 1, 2, 3]),
    ],
)
@pytest.mark.parametrize("content", [CONTENT, CONTENT[:3], b""])
def test_all_hold_the_state_in_the_end(hosts: str, sources: list[int], content: bytes) -> None:
    states = replicated(hosts, sources, content)
    assert [state.content == content for state in states] == [True] * len(hosts)


def ours() -> list[str]:
    """Threads, shared memory and addresses of transfers in this process."""
    threads = [one.name for one in threading.enumerate() if one.name.startswith(("kungfu-fetch", "kungfu-serve"))]
    listening = [line for line in Path("/proc/net/unix").read_text().splitlines() if JOB in line]
    return [*threads, *(one for one in _descriptors() if "memfd:kungfu" in one), *listening]


def _descriptors() -> Iterator[str]:
    for entry in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it was that of the listing
            yield os.readlink(f"/proc/self/fd/{entry}")


def test_nothing_is_left_of_a_transfer() -> None:
    replicated("aab", [0], CONTENT)
    assert ours() == []


# ---- a giver that fails ----------------------------------------------------------------------------------------------


def fetched_from(
    giver: Callable[[socket.socket], None], *, wait_s: float = 60.0, abandoned: Any = lambda: None
) -> None:
    """Fetches over memory from a giver that does as it likes once it is called; raises what the taker raises."""
    with ExitStack() as stack:
        cluster = Cluster("aa", [0], stack, wait_s=wait_s)
        listener = stack.enter_context(
            closing(unix_socket.listen(JOB, "2-0-state", secret=bytes.fromhex(SECRET), who="a giver", backlog=1))
        )
        threads = stack.enter_context(ThreadPoolExecutor(1))

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60.0)
                giver(connection)

        answering = threads.submit(answer)
        try:
            fetch(Held(bytes(len(CONTENT))), cluster.context(1), abandoned=abandoned)
        finally:
            answering.result(180.0)
            listens_at = addresses(JOB, "2-0-state", secret=bytes.fromhex(SECRET))[0][1:]
            assert [one for one in ours() if listens_at not in one] == []


def shake_hands(connection: socket.socket) -> int:
    """What an honest giver does up to the first block; gives the ring."""
    handshake.answer(connection, me=me(0))
    handshake.receive(connection, 16)
    ring = memfd.make(load_state().kungfu_transfer_ring_bytes())
    memfd.send(connection, descriptor=ring, rank=1)
    return ring


def give_two_blocks(connection: socket.socket) -> None:
    os.close(shake_hands(connection))
    connection.sendall(b"\1\1")
    handshake.receive(connection, 2)


def give_two_blocks_and_wait(connection: socket.socket) -> None:
    give_two_blocks(connection)
    assert connection.recv(1) == b"", "the taker hangs up"


def test_a_giver_that_hangs_up_is_named_with_what_came() -> None:
    text = rf"lost rank 0, sending bytes 0 to {len(CONTENT)} of the state: it hung up; 2097152 of {len(CONTENT)} bytes"
    with pytest.raises(PeerFailure, match=text):
        fetched_from(give_two_blocks)


def test_a_giver_that_hangs_up_before_it_has_passed_the_memory_is_named() -> None:
    with pytest.raises(PeerFailure, match=r"lost rank 0, sending bytes 0 to \d+ of the state"):
        fetched_from(lambda connection: None)


def test_a_giver_that_stalls_is_named_with_the_seconds() -> None:
    place = f"for rank 0, sending bytes 0 to {len(CONTENT)} of the state: 2097152 of {len(CONTENT)} bytes"
    wait_s, error = expired_at(place, lambda wait_s: fetched_from(give_two_blocks_and_wait, wait_s=wait_s))
    assert f"waited {wait_s:.1f} s {place}" in str(error)


def test_a_transfer_that_is_abandoned_ends_at_once_and_says_why() -> None:
    with pytest.raises(PeerFailure, match="the transfer of the state was abandoned: peer 0 was killed"):
        fetched_from(give_two_blocks_and_wait, abandoned=lambda: PeerFailure("peer 0 was killed"))


def test_a_giver_that_does_not_know_the_secret_is_refused() -> None:
    def answer(connection: socket.socket) -> None:
        with pytest.raises((PeerFailure, ConnectionError)):
            handshake.answer(connection, me=me(0, secret=b"guess"))

    with pytest.raises(PeerFailure, match="has not proved that it knows the job's secret"):
        fetched_from(answer)


def test_a_giver_that_never_listens_is_named() -> None:
    with ExitStack() as stack:
        cluster = Cluster("aa", [0], stack, wait_s=SHORT_S)
        with pytest.raises(DeadlineExceeded, match=r"waited 0\.3 s for rank 0, sending .* to listen"):
            fetch(Held(bytes(9)), cluster.context(1))


class Stream(PeerServiceServicer):
    """A giver on another host that sends these messages, then ``and_then`` happens."""

    def __init__(self, *messages: bytes, and_then: Callable[[], None] = lambda: None) -> None:
        self._messages, self._and_then = messages, and_then

    def Fetch(self, request: pb.FetchRequest, context: Any) -> Any:  # noqa: N802 - gRPC's name
        for message in self._messages:
            yield pb.StateChunk(data=message)
        self._and_then()


def streamed(stream: Stream, *, wait_s: float = 60.0) -> None:
    """Fetches a state of 100 bytes over the network from a giver that does as it likes."""
    with ExitStack() as stack:
        cluster = Cluster("ab", [0], stack, wait_s=wait_s)
        giver = Peer(0, cluster.serve(stream, HOSTS["a"]))
        fetch(Held(bytes(100)), replace(cluster.context(1), view=View(2, (giver, cluster.view.peers[1]))))


@pytest.mark.parametrize(("messages", "came"), [([bytes(90)], 90), ([bytes(60), bytes(60)], 120)])
def test_a_stream_of_another_length_is_refused(messages: list[bytes], came: int) -> None:
    with pytest.raises(InternalError, match=rf"rank 0, sending bytes 0 to 100 of the state: {came} of 100 bytes came"):
        streamed(Stream(*messages))


def test_a_stream_that_breaks_names_its_giver() -> None:
    def fail() -> None:
        raise OSError("this disk is gone")

    with pytest.raises(PeerFailure, match="lost rank 0, sending bytes 0 to 100 of the state"):
        streamed(Stream(bytes(50), and_then=fail))


def test_a_stream_that_stalls_names_its_giver_with_the_seconds() -> None:
    over = threading.Event()
    try:
        stream = Stream(bytes(50), and_then=lambda: over.wait(180.0) and None)
        place = "s for rank 0, sending bytes 0 to 100 of the state: 50 of 100 bytes came"
        _, error = expired_at(place, lambda wait_s: streamed(stream, wait_s=wait_s))
        assert re.search(r"waited \d+\.\d s", str(error)) is not None
        assert 0.0 < error.waited_s < 180.0, "it did not wait for the giver to end"
    finally:
        over.set()


# ---- a taker that fails ----------------------------------------------------------------------------------------------


def test_a_taker_that_hangs_up_is_noted_by_its_giver() -> None:
    with ExitStack() as stack:
        cluster = Cluster("aa", [0], stack)
        error = RuntimeError("the view never started")
        with (
            suppress(RuntimeError),
            serving(Held(CONTENT), cluster.context(0), server=cluster.services[0].state_server),
        ):
            take_a_block_and_hang_up()
            raise error
    text = f"lost rank 1, taking bytes 0 to {len(CONTENT)} of the state: it hung up"
    assert any(note.startswith(text) for note in error.__notes__)


def take_a_block_and_hang_up() -> None:
    connection = unix_socket.connect(JOB, "2-0-state", secret=bytes.fromhex(SECRET), timeout_s=60.0)
    with connection:
        connection.settimeout(60.0)
        handshake.call(connection, me=me(1), listener=0)
        connection.sendall((0).to_bytes(8, "big") + len(CONTENT).to_bytes(8, "big"))
        os.close(memfd.receive(connection, bytes_=load_state().kungfu_transfer_ring_bytes(), deadline_s=60.0, rank=0))
        handshake.receive(connection, 4)
        connection.sendall(b"\1")


def test_a_request_for_what_is_not_there_is_refused() -> None:
    with ExitStack() as stack:
        cluster = Cluster("ab", [0], stack)
        stack.enter_context(serving(Held(bytes(50)), cluster.context(0), server=cluster.services[0].state_server))
        with pytest.raises(PeerFailure, match="rank 1 asked for bytes 0 to 100 of view 2, but view 2 has 50"):
            fetch(Held(bytes(100)), cluster.context(1))


# ---- turns -----------------------------------------------------------------------------------------------------------


def test_takers_on_other_hosts_go_one_after_the_other_in_the_order_of_the_plan() -> None:
    with ExitStack() as stack:
        cluster = Cluster("abc", [0], stack, wait_s=SHORT_S)
        server = cluster.services[0].state_server
        buffers = Buffers.of([np.frombuffer(bytearray(CONTENT), np.uint8)])
        with server.offering(2, buffers, [2, 1]):
            late = server.stream(pb.FetchRequest(version=2, start=0, stop=9, rank=1), deadline_s=SHORT_S)
            with pytest.raises(DeadlineExceeded, match=r"waited 0\.3 s for rank 2 to take its part of the state first"):
                next(late)
            first = server.stream(pb.FetchRequest(version=2, start=0, stop=9, rank=2), deadline_s=SHORT_S)
            assert [chunk.data for chunk in first] == [CONTENT[:9]]
            then = server.stream(pb.FetchRequest(version=2, start=3, stop=9, rank=1), deadline_s=SHORT_S)
            assert [chunk.data for chunk in then] == [CONTENT[3:9]]
            with pytest.raises(PeerFailure, match="rank 1 asked for bytes"):
                next(server.stream(pb.FetchRequest(version=2, start=3, stop=9, rank=1), deadline_s=SHORT_S))
        with pytest.raises(DeadlineExceeded, match="for this peer to be in view 3"):
            next(server.stream(pb.FetchRequest(version=3, start=0, stop=1, rank=1), deadline_s=SHORT_S))


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_a_transfer_holds_nothing_of_the_size_of_the_state(hosts: str) -> None:
    content = np.random.default_rng(2).bytes(128 << 20)
    states = [Held(content), Held(content), Held(bytes(len(content)))]
    over, most = threading.Event(), [0]

    def watch() -> None:
        while not over.wait(0.002):
            most[0] = max(most[0], psutil.Process().memory_info().rss)

    with ExitStack() as stack, ThreadPoolExecutor(1) as threads:
        cluster = Cluster(hosts, [0, 1], stack)
        before = psutil.Process().memory_info().rss
        watching = threads.submit(watch)
        cluster.run(states)
        over.set()
        watching.result()
    assert states[2].content == content
    assert most[0] - before < 64 << 20
