"""A call that is made again over other connections, until one of them is answered."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

import pytest

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.ipc.persistent import Persistent
from tests.runtime.ipc.link import link
from tests.runtime.ipc.test_rpc import SECRET, served


def line_to(address: str, *, again_s: float) -> closing[Persistent]:
    def method(channel: Any) -> rpc.Method:
        admit: rpc.Method = PeerServiceStub(channel).Admit
        return admit

    return closing(Persistent(address, secret=SECRET, method=method, again_s=again_s))


def test_many_tries_may_fail_before_one_is_answered() -> None:
    with served() as (service, address), link(address) as net, line_to(net.address, again_s=0.2) as line:
        assert line.ask(pb.Admission, patience_s=60.0) == pb.Ack()
        net.down()
        up, began = threading.Timer(1.7, net.up), time.monotonic()
        up.start()
        assert line.ask(pb.Admission, patience_s=60.0) == pb.Ack()
        assert time.monotonic() - began > 1.6
        up.join()
        assert len(service.admitted) >= 2


def test_who_never_answers_is_waited_for_as_long_as_was_said_and_one_try_more() -> None:
    with served() as (_, address), link(address) as net, line_to(net.address, again_s=0.1) as line:
        net.down()
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            line.ask(pb.Admission, patience_s=0.95)
        assert time.monotonic() - began > 0.95 + 0.1


def test_nobody_waits_for_a_port_that_refuses_nor_at_a_line_that_is_closed() -> None:
    with served() as (_, address):
        pass
    with line_to(address, again_s=5.0) as line:
        began = time.monotonic()
        with pytest.raises(rpc.RpcError):
            line.ask(pb.Admission, patience_s=60.0)
        assert time.monotonic() - began < 50.0
        line.close()
        with pytest.raises(PeerFailure, match="is closed"):
            line.ask(pb.Admission, patience_s=60.0)
