"""Calls with the job's secret: answered, refused, late, lost."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import (
    PeerServiceServicer,
    PeerServiceStub,
    add_PeerServiceServicer_to_server,
)
from tests.runtime.ipc.link import link

SECRET = "c0ffee"
connected = partial(rpc.connect, secret=SECRET)


@dataclass
class Service(PeerServiceServicer):
    """Records the versions that it admits; holds each barrier until it may end, and reports that a peer is inside."""

    admitted: list[int] = field(default_factory=list)
    inside: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def Admit(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.admitted.append(request.decision.view.version)
        return pb.Ack()

    def Arrive(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.inside.set()
        self.may_end.wait(180.0)
        return pb.Admission()

    def Fetch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - gRPC's name
        yield pb.StateChunk(data=b"secret state")


@contextmanager
def serving(service: Service, *, threads: int = 4, **options: Any) -> Iterator[rpc.Server]:
    server = rpc.serve(
        (add_PeerServiceServicer_to_server, service), host="127.0.0.1", secret=SECRET, threads=threads, **options
    )
    try:
        yield server
    finally:
        service.may_end.set()
        server.stop()


@contextmanager
def served(service: Service | None = None) -> Iterator[tuple[Service, str]]:
    service = service or Service()
    with serving(service) as server:
        yield service, server.address


def admit(address: str, *, secret: str, version: int = 3) -> None:
    with rpc.connect(address, secret=secret) as channel:
        message = pb.Admission(decision=pb.Decision(view=pb.ViewInfo(version=version)))
        rpc.call(PeerServiceStub(channel).Admit, message, deadline_s=60.0, what="rank 1")


def arrive(channel: rpc.Channel, *, deadline_s: float = 60.0, what: str = "rank 0", **options: Any) -> Any:
    """Waits at a barrier of the service."""
    return rpc.call(PeerServiceStub(channel).Arrive, pb.BarrierArrival(), deadline_s=deadline_s, what=what, **options)


@pytest.mark.parametrize("secret", ["", "c0ffe", "c0ffee0", "C0FFEE"])
def test_a_call_with_another_secret_is_refused_and_does_nothing(secret: str) -> None:
    with served() as (service, address):
        with pytest.raises(PeerFailure, match="lost rank 1: this job's secret is missing or wrong"):
            admit(address, secret=secret)
        assert service.admitted == []


def test_calls_without_the_secret_that_never_send_their_request_hold_up_nobody() -> None:
    with served() as (service, address), stranger(address) as connection:
        for stream in range(1, 2 * 60, 2):
            connection.sendall(_headers(stream))
        _await_refusal(connection)
        admit(address, secret=SECRET)
        assert service.admitted == [3]


def test_strangers_take_no_more_connections_than_the_server_has_for_all() -> None:
    with serving(Service(), threads=1, connections=8) as server, ExitStack() as stack:
        several = [stack.enter_context(stranger(server.address)) for _ in range(40)]
        ended = [connection for connection in several if _is_ended(connection)]
        assert len(ended) >= 40 - 8 - 1


def test_silent_connections_are_ended_beyond_those_that_an_address_may_have() -> None:
    with serving(Service(), threads=1) as server, ExitStack() as stack, stranger(server.address) as speaks:
        where = server.address.partition(":")[0], int(server.address.partition(":")[2])
        silent = [stack.enter_context(socket.create_connection(where, 60.0)) for _ in range(8)]
        for one in (speaks, *silent):  # each has been accepted
            assert one.recv(9)
        before = len(os.listdir("/proc/self/fd"))
        server.end_strangers(per_address=3, silent_s=60.0)
        assert len(os.listdir("/proc/self/fd")) == before
        server.end_strangers(per_address=3, silent_s=0.0)
        assert sum(map(_is_open, silent)) == 3
        assert _is_open(speaks)


def test_connections_that_spoke_without_the_secret_are_ended_and_those_of_peers_stay() -> None:
    """One on which a call was refused is a stranger's; an idle one and one whose call waits are a peer's."""
    service = Service()
    with serving(service) as server, ExitStack() as stack:
        idle, waits = (stack.enter_context(connected(server.address, shared=False)) for _ in range(2))
        for one in (idle, waits):
            rpc.call(PeerServiceStub(one).Admit, pb.Admission(), deadline_s=60.0, what="rank 1")
        answer = PeerServiceStub(waits).Arrive.future(pb.BarrierArrival(), timeout=60.0)
        peers = _callers(server.address)
        assert len(peers) == 2
        strangers = [stack.enter_context(stranger(server.address)) for _ in range(8)]
        for connection in strangers:
            connection.sendall(_headers(1))
            _await_refusal(connection)
        server.end_strangers(per_address=3)
        assert len(_callers(server.address)) == 10, "a call may wait for a thread yet"
        server.end_strangers(per_address=3, spoken_s=0.0)
        assert sum(map(_is_open, strangers)) == 3
        assert peers <= _callers(server.address)
        service.may_end.set()
        assert answer.result() is not None


def _callers(address: str) -> set[int]:
    """The ports at the other ends of a server's connections."""
    port = int(address.rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    return {one.raddr.port for one in connections if one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED}


def test_connections_take_half_of_the_descriptors_at_the_most() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 64, before[1]))
    with ExitStack() as stack:
        try:
            server = stack.enter_context(serving(Service(), threads=1))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        several = [stack.enter_context(stranger(server.address)) for _ in range(used + 64)]
        ended = [connection for connection in several if _is_ended(connection)]
        assert len(ended) >= len(several) // 2 - 1


def _await_refusal(connection: socket.socket) -> None:
    refused = b""
    while b"grpc-status" not in refused:
        refused += connection.recv(1 << 16)


def _is_open(connection: socket.socket) -> bool:
    """True if the server does not hang up within 0.2 s."""
    connection.settimeout(0.2)
    try:
        while connection.recv(1 << 10):
            pass
    except TimeoutError:
        return True
    except ConnectionError:
        return False
    return False


@contextmanager
def stranger(address: str) -> Iterator[socket.socket]:
    """A connection that speaks HTTP/2 (RFC 9113) and has sent its preface and its settings."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60.0) as connection:
        with suppress(ConnectionError):  # it may be ended by the time
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        yield connection


def _headers(stream: int) -> bytes:
    """The frame that begins a call of Admit, and says that more comes."""
    fields = {":path": "/kungfu.PeerService/Admit", "te": "trailers", "content-type": "application/grpc"}
    block = b"\x83\x86" + b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in {":authority": "x", **fields}.items()
    )
    return len(block).to_bytes(3, "big") + b"\x01\x04" + stream.to_bytes(4, "big") + block


def _is_ended(connection: socket.socket) -> bool:
    """Whether the server has hung up, and did not even say its own settings."""
    try:
        return connection.recv(1 << 10) == b""
    except ConnectionError:
        return True


def test_a_stream_is_refused_too() -> None:
    with served() as (_, address), rpc.connect(address, secret="guess") as channel:
        stream = PeerServiceStub(channel).Fetch(pb.FetchRequest(), timeout=60.0)
        with pytest.raises(rpc.RpcError, match="secret is missing or wrong"):
            next(stream)


class Ending:
    """A server of gRPC's in an interpreter that ends, as of Python 3.12 on."""

    def stop(self, grace: float) -> threading.Event:
        raise RuntimeError("can't create new thread at interpreter shutdown")


def test_a_server_stops_where_no_thread_can_be_started_any_more() -> None:
    rpc.Server(Ending(), "127.0.0.1:1", set()).stop()


@pytest.mark.slow
def test_a_server_that_is_stopped_at_the_end_of_a_program_says_nothing() -> None:
    program = """
import atexit
from kungfu.runtime.ipc import rpc
atexit.register(rpc.serve(host="127.0.0.1", secret="ab", threads=1).stop)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_deadline_names_whom_we_waited_for_and_how_long() -> None:
    waited = pytest.raises(DeadlineExceeded, match=r"^waited 0\.2 s for rank 0 at barrier 3 and had no answer$")
    with served() as (_, address), connected(address) as channel, waited as late:
        arrive(channel, deadline_s=0.2, what="rank 0 at barrier 3", peer=4)
    assert (late.value.peers, late.value.waited_s) == ((4,), 0.2)


def test_a_server_that_goes_while_it_is_asked_is_named() -> None:
    service = Service()
    with ThreadPoolExecutor(1) as calls, serving(service, threads=2) as server, connected(server.address) as channel:
        call = calls.submit(arrive, channel)
        assert service.inside.wait(180.0)
        server.stop()
        with pytest.raises(PeerFailure, match=r"^lost rank 0: "):
            call.result(180.0)


def test_calls_are_answered_over_a_slow_network() -> None:
    with served() as (service, address), link(address, delay_s=0.12) as slow:
        for version in range(5):
            admit(slow.address, secret=SECRET, version=version)
        assert service.admitted == [0, 1, 2, 3, 4]


def test_a_call_waits_for_its_connection_until_its_deadline() -> None:
    with ThreadPoolExecutor(1) as calls, served() as (service, address), link(address) as broken:
        broken.down()
        call = calls.submit(admit, broken.address, secret=SECRET)
        assert broken.reached.wait(180.0)
        broken.up()
        call.result(180.0)
        assert service.admitted == [3]
        broken.down()
        waited = pytest.raises(DeadlineExceeded, match=r"^waited 0\.3 s for rank 0 and had no answer$")
        with connected(broken.address) as channel, waited:
            arrive(channel, deadline_s=0.3)


def test_a_call_whose_connection_breaks_is_made_again() -> None:
    with served() as (held, address), link(address) as net, connected(net.address) as channel:
        for options in ({}, {"abandoned": lambda: None}):
            held.inside.clear()
            held.may_end.clear()
            with ThreadPoolExecutor(1) as calls:
                call = calls.submit(arrive, channel, **options)
                assert held.inside.wait(180.0)
                held.inside.clear()
                net.cut()
                assert held.inside.wait(180.0), "the barrier hears of it once more"
                held.may_end.set()
                assert call.result(180.0) == pb.Admission()


def test_nobody_waits_for_a_port_that_refuses() -> None:
    with served() as (_, address):
        pass
    began = time.monotonic()
    with pytest.raises(PeerFailure, match=r"^lost rank 1: "):
        admit(address, secret=SECRET)
    with connected(address) as channel, pytest.raises(PeerFailure, match=r"^lost rank 0: "):
        arrive(channel, abandoned=lambda: None)
    assert time.monotonic() - began < 60.0, "of the 120 s that they had"


def test_nobody_waits_for_a_connection_to_one_that_is_known_to_be_gone() -> None:
    with served() as (_, address), link(address) as broken, connected(broken.address) as channel:
        broken.down()
        gone = PeerFailure("its process has ended", peers=[5])
        with pytest.raises(PeerFailure, match=r"^lost rank 0: its process has ended$") as lost:
            arrive(channel, peer=7, abandoned=lambda: gone)
    assert lost.value.peers == (5,), "and not the one that was called"


def test_a_line_stays_open_until_it_is_not_kept() -> None:
    channels = rpc.ChannelPool(secret=SECRET)
    with served() as (service, one), served() as (_, other):
        line = channels.to(one)
        for version in (1, 2):
            message = pb.Admission(decision=pb.Decision(view=pb.ViewInfo(version=version)))
            rpc.call(PeerServiceStub(channels.to(one)).Admit, message, deadline_s=60.0, what="rank 1")
        assert channels.to(one) is line
        assert service.admitted == [1, 2]
        channels.keep([other])
        assert channels.to(one) is not line
        with pytest.raises(ValueError, match="closed channel"):
            PeerServiceStub(line).Admit(pb.Admission(), timeout=60.0)
    channels.keep([])


def test_a_look_at_the_connections_keeps_the_locks_of_this_process(tmp_path: Path) -> None:
    """The kernel ends all locks of a process on a file as soon as the process closes any descriptor of the file."""
    path = tmp_path / "lock"
    locks = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with serving(Service()) as server, path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        server.end_strangers()
        refused = subprocess.run([sys.executable, "-c", locks, str(path)], capture_output=True, timeout=120)
    assert b"BlockingIOError" in refused.stderr
