"""All say that they are there, or an error says who did not."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest

from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure
from kungfu.runtime.attachment.horovod.gloo_rendezvous import wait_for_all
from kungfu.runtime.attachment.horovod.key_value_store import KeyValueStore, listens_at
from kungfu.runtime.ipc.handshake import Credentials
from tests.runtime.expiring import expired_at

ME = Credentials("job", view=3, rank=0, size=3, secret=b"secret")


def test_all_go_on_when_the_last_has_come() -> None:
    assert together([replace(ME, rank=rank) for rank in (2, 0, 1)]) == [None, None, None]


def test_the_ranks_that_did_not_come_are_named() -> None:
    def meet(deadline_s: float) -> None:
        (error,) = together([replace(ME, rank=1)], deadline_s=deadline_s)
        assert error is not None
        raise error

    expired_at("for rank 0, 2 of 3 to come to view 3", meet)


@pytest.mark.parametrize("other", [{"secret": b"wrong"}, {"job": "another"}, {"view": 2}, {"size": 2}])
def test_a_peer_of_another_job_view_size_or_secret_is_refused(other: dict[str, object]) -> None:
    stranger = replace(ME, rank=1, **other)  # type: ignore[arg-type]  # the fields differ in type
    # The stranger waits for nobody for long; the others hear of it long before their deadline.
    errors = together([replace(ME, rank=0), stranger, replace(ME, rank=2)], waits_s={1: 0.3})
    assert isinstance(errors[0], PeerFailure)
    assert isinstance(errors[2], PeerFailure)
    assert "rank 1 to view 3 of job 'job' has not proved" in str(errors[0])


def test_a_store_that_is_gone_means_that_rank_0_is() -> None:
    store = KeyValueStore("127.0.0.1")
    store.close()
    with pytest.raises(PeerFailure, match=f"rank 0 of view 3 does not answer at {listens_at(store.address)}, where"):
        wait_for_all(replace(ME, rank=1), store=store.address, deadline=time.monotonic() + 180)
    known = PeerFailure("rank 0 (peer 4): killed by SIGKILL", ranks=[0])
    with pytest.raises(PeerFailure, match=r"^rank 0 \(peer 4\): killed by SIGKILL"):
        wait_for_all(replace(ME, rank=1), store=store.address, deadline=time.monotonic() + 180, abandoned=lambda: known)


def test_a_store_that_leaves_calls_unanswered_for_a_while_is_asked_again() -> None:
    with closing(KeyValueStore("127.0.0.1")) as store, taking_calls(unanswered=3, store=store) as slow:
        wait_for_all(replace(ME, size=1), store=slow, deadline=time.monotonic() + 180)


def test_a_store_that_does_not_answer_makes_rank_0_late_and_not_lost() -> None:
    """A store that answers no peer up to the deadline makes rank 0 late and not lost."""
    with taking_calls() as silent, pytest.raises(DeadlineExceeded, match="for rank 0 of 3 to come to view 3") as caught:
        wait_for_all(replace(ME, rank=1), store=silent, deadline=time.monotonic() + 0.3)
    assert caught.value.waiting_for == (0,)
    assert caught.value.waited_s >= 0.3


def test_a_silent_store_is_not_asked_again_once_the_view_is_given_up() -> None:
    lost, deadline = PeerFailure("rank 2 is gone"), time.monotonic() + 180
    with taking_calls() as silent, pytest.raises(PeerFailure, match="rank 2 is gone"):
        wait_for_all(replace(ME, rank=1), store=silent, deadline=deadline, abandoned=lambda: lost)
    assert time.monotonic() < deadline


@contextmanager
def taking_calls(*, unanswered: int = 1 << 30, store: KeyValueStore | None = None) -> Iterator[str]:
    """An address that takes calls and hangs up on the first of them; the later ones reach the store."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for number in itertools.count():
            try:
                caller, _ = listener.accept()
            except OSError:  # closed
                return
            with caller:
                if store is not None and number >= unanswered:
                    forward(caller, store)

    serving = threading.Thread(target=serve)
    serving.start()
    token = "" if store is None else store.address.partition("/")[2]
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}/{token}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        serving.join(timeout=180.0)
        listener.close()


def forward(caller: socket.socket, store: KeyValueStore) -> None:
    """One call, and its answer, after which the store hangs up."""
    host, _, port = listens_at(store.address).partition(":")
    with socket.create_connection((host, int(port)), timeout=180) as onward:
        asking = threading.Thread(target=copy, args=(caller, onward))
        asking.start()
        copy(onward, caller)
        with suppress(OSError):  # it has hung up
            caller.shutdown(socket.SHUT_RD)  # wakes the thread
        asking.join(timeout=180.0)


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):  # one of the two has hung up
        while data := source.recv(1 << 16):
            target.sendall(data)


def together(
    peers: list[Credentials], *, deadline_s: float = 180.0, waits_s: Mapping[int, float] = MappingProxyType({})
) -> list[BaseException | None]:
    """What each of the peers, all at one new store, got: an error or nothing; ``waits_s`` are other deadlines, by
    rank."""
    with closing(KeyValueStore("127.0.0.1")) as store, ThreadPoolExecutor(len(peers)) as pool:
        now, meet = time.monotonic(), partial(wait_for_all, store=store.address)
        going = [pool.submit(meet, one, deadline=now + waits_s.get(one.rank, deadline_s)) for one in peers]
        return [_error(one) for one in going]


def _error(one: Future[None]) -> BaseException | None:
    error = one.exception(timeout=180.0)
    assert error is None or isinstance(error, KungfuError)
    return error
