"""The handshake over a pair of connected sockets, one end in a thread."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from kungfu.errors import PeerFailure
from kungfu.runtime.ipc.handshake import Credentials, answer, call

LISTENER = Credentials(job="job", view=3, rank=0, size=2, secret=b"secret")
CALLER = replace(LISTENER, rank=1)


def shake(*, caller: Credentials, listener: Credentials) -> tuple[Future[None], Future[int]]:
    """What became of the call and of the answer; whoever ends hangs up."""
    ends = socket.socketpair()

    def with_end(end, act):
        end.settimeout(60.0)
        with end:
            return act(end)

    with ThreadPoolExecutor(2) as threads:
        calling = threads.submit(with_end, ends[0], lambda end: call(end, me=caller, listener=listener.rank))
        answering = threads.submit(with_end, ends[1], lambda end: answer(end, me=listener))
    return calling, answering


@pytest.mark.parametrize("other", [{"secret": b"guess"}, {"view": 4}, {"job": "other"}])
def test_neither_side_accepts_a_peer_of_another_secret_view_or_job(other: dict) -> None:
    calling, answering = shake(caller=replace(CALLER, **other), listener=LISTENER)
    with pytest.raises(PeerFailure, match=r"rank 0 of view . of job .* has not proved that it knows the job's secret"):
        calling.result()
    with pytest.raises((PeerFailure, ConnectionError)):
        answering.result()


def test_a_caller_of_another_size_is_turned_away() -> None:
    calling, answering = shake(caller=replace(CALLER, size=3), listener=LISTENER)
    with pytest.raises(PeerFailure, match="size 3 to a peer of a view of size 2"):
        answering.result()
    with pytest.raises((PeerFailure, ConnectionError)):
        calling.result()


def test_the_listeners_own_proof_sent_back_to_it_is_no_proof() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        answering = threads.submit(answer, theirs, me=LISTENER)
        ours.sendall(b"kungfu-1" + (1).to_bytes(4, "big") + (2).to_bytes(4, "big") + bytes(32))
        ours.sendall(ours.recv(64)[32:])
        with pytest.raises(PeerFailure, match="a caller that says it is rank 1 has not proved"):
            answering.result()


@pytest.mark.parametrize("said", [b"", b"kungfu-1", b"GET / HTTP/1.1\r\n" * 3])
def test_a_stranger_is_turned_away_whatever_it_says(said: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(said)
        ours.close()
        with pytest.raises((PeerFailure, ConnectionError)):
            answer(theirs, me=LISTENER)
