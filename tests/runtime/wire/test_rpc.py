"""Calls with the job's secret: answered, refused, late, lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.wire import messages_pb2 as pb
from kungfu.runtime.wire import rpc
from kungfu.runtime.wire.messages_pb2_grpc import (
    PeerServiceServicer,
    PeerServiceStub,
    add_PeerServiceServicer_to_server,
)

SECRET = "c0ffee"


@dataclass
class Service(PeerServiceServicer):
    """Adds up what it is told; a barrier of version 9 is held until it may end."""

    admitted: list[int] = field(default_factory=list)
    may_end: threading.Event = field(default_factory=threading.Event)

    def Admit(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.admitted.append(request.view.version)
        return pb.Ack()

    def Arrive(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.may_end.wait(10.0)
        return pb.Verdict()

    def Fetch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - gRPC's name
        yield pb.Chunk(data=b"secret state")


@contextmanager
def served() -> Iterator[tuple[Service, str]]:
    service = Service()
    server = rpc.serve(
        lambda grpc_server: add_PeerServiceServicer_to_server(service, grpc_server),
        host="127.0.0.1",
        secret=SECRET,
        threads=2,
    )
    try:
        yield service, server.address
    finally:
        service.may_end.set()
        server.stop()


def admit(address: str, *, secret: str, version: int = 3) -> None:
    with rpc.connect(address, secret=secret) as channel:
        message = pb.Admission(view=pb.ViewInfo(version=version))
        rpc.call(PeerServiceStub(channel).Admit, message, deadline_s=10.0, what="rank 1")


def test_a_call_with_the_secret_is_answered() -> None:
    with served() as (service, address):
        admit(address, secret=SECRET)
        assert service.admitted == [3]


def test_every_server_has_an_address_of_its_own() -> None:
    with served() as (_, one), served() as (_, other):
        assert one != other
        assert {address.rpartition(":")[0] for address in (one, other)} == {"127.0.0.1"}


@pytest.mark.parametrize("secret", ["", "c0ffe", "c0ffee0", "C0FFEE"])
def test_a_call_with_another_secret_is_refused_and_does_nothing(secret: str) -> None:
    with served() as (service, address):
        with pytest.raises(PeerFailure, match="lost rank 1: this job's secret is missing or wrong"):
            admit(address, secret=secret)
        assert service.admitted == []


def test_a_call_without_any_secret_is_refused() -> None:
    with served() as (service, address), grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError, match="secret is missing or wrong"):
            PeerServiceStub(channel).Admit(pb.Admission(), timeout=10.0)
        assert service.admitted == []


def test_a_stream_is_refused_too() -> None:
    with served() as (_, address), rpc.connect(address, secret="guess") as channel:
        stream = PeerServiceStub(channel).Fetch(pb.Slice(), timeout=10.0)
        with pytest.raises(rpc.RpcError, match="secret is missing or wrong"):
            next(stream)


def test_a_deadline_names_whom_we_waited_for_and_how_long() -> None:
    waited = pytest.raises(DeadlineExceeded, match=r"^waited 0\.2 s for rank 0 at barrier 3 and had no answer$")
    with served() as (_, address), rpc.connect(address, secret=SECRET) as channel, waited:
        rpc.call(PeerServiceStub(channel).Arrive, pb.Arrival(), deadline_s=0.2, what="rank 0 at barrier 3")


def test_a_server_that_is_gone_is_named() -> None:
    with served() as (_, address):
        pass
    with pytest.raises(PeerFailure, match=r"^lost rank 1: "):
        admit(address, secret=SECRET)


def test_a_server_that_goes_while_it_is_asked_is_named() -> None:
    lost: list[BaseException] = []

    def ask(address: str) -> None:
        with rpc.connect(address, secret=SECRET) as channel:
            try:
                rpc.call(PeerServiceStub(channel).Arrive, pb.Arrival(), deadline_s=10.0, what="rank 0")
            except PeerFailure as error:
                lost.append(error)

    service = _Held()
    server = rpc.serve(
        lambda grpc_server: add_PeerServiceServicer_to_server(service, grpc_server),
        host="127.0.0.1",
        secret=SECRET,
        threads=2,
    )
    asking = threading.Thread(target=ask, args=(server.address,))
    asking.start()
    assert service.inside.wait(10.0)
    server.stop()
    asking.join(10.0)
    service.may_end.set()
    assert [str(error).startswith("lost rank 0: ") for error in lost] == [True]


@dataclass
class _Held(Service):
    inside: threading.Event = field(default_factory=threading.Event)

    def Arrive(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.inside.set()
        return super().Arrive(request, context)


def test_a_line_stays_open_until_it_is_not_kept() -> None:
    lines = rpc.Lines(secret=SECRET)
    with served() as (service, one), served() as (_, other):
        line = lines.to(one)
        for version in (1, 2):
            message = pb.Admission(view=pb.ViewInfo(version=version))
            rpc.call(PeerServiceStub(lines.to(one)).Admit, message, deadline_s=10.0, what="rank 1")
        assert lines.to(one) is line
        assert service.admitted == [1, 2]
        lines.keep([other])
        assert lines.to(one) is not line
        with pytest.raises(ValueError, match="closed channel"):
            PeerServiceStub(line).Admit(pb.Admission(), timeout=10.0)
    lines.keep([])
