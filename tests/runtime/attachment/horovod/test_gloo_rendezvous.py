"""All say that they are there, or an error says who did not."""

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from unittest.mock import patch

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
        raise error

    expired_at("for rank 0, 2 of 3 to come to view 3", meet)


@pytest.mark.parametrize("other", [{"secret": b"wrong"}, {"job": "another"}, {"view": 2}, {"size": 2}])
def test_a_peer_of_another_job_view_size_or_secret_is_refused(other: dict[str, object]) -> None:
    stranger = replace(ME, rank=1, **other)  # type: ignore[arg-type]  # the fields differ in type
    # The stranger waits for nobody for long; the others hear of it long before their deadline.
    first, of_stranger, last = together([replace(ME, rank=0), stranger, replace(ME, rank=2)], waits_s={1: 0.3})
    assert isinstance(first, PeerFailure)
    assert isinstance(of_stranger, KungfuError)
    assert isinstance(last, PeerFailure)
    assert "rank 1 to view 3 of job 'job' has not proved" in str(first)


def test_a_store_that_is_gone_means_that_rank_0_is() -> None:
    store = KeyValueStore("127.0.0.1")
    store.close()
    with pytest.raises(PeerFailure, match=f"rank 0 of view 3 does not answer at {listens_at(store.address)}, where"):
        wait_for_all(replace(ME, rank=1), store=store.address, deadline=time.monotonic() + 180)
    known = PeerFailure("rank 0 (peer 4): killed by SIGKILL", ranks=[0])
    with pytest.raises(PeerFailure, match=r"^rank 0 \(peer 4\): killed by SIGKILL"):
        wait_for_all(replace(ME, rank=1), store=store.address, deadline=time.monotonic() + 180, abandoned=lambda: known)


def test_a_store_that_leaves_calls_unanswered_for_a_while_is_asked_again() -> None:
    with hanging_up(3) as slow:
        wait_for_all(replace(ME, size=1), store=slow, deadline=time.monotonic() + 180)


def test_a_store_that_does_not_answer_makes_rank_0_late_and_not_lost() -> None:
    with hanging_up() as silent, pytest.raises(DeadlineExceeded, match="for rank 0 of 3 to come to view 3") as caught:
        wait_for_all(replace(ME, rank=1), store=silent, deadline=time.monotonic() + 0.3)
    assert caught.value.waiting_for == (0,)
    assert caught.value.waited_s >= 0.3


def test_a_silent_store_is_not_asked_again_once_the_view_is_given_up() -> None:
    lost, deadline = PeerFailure("rank 2 is gone"), time.monotonic() + 180
    with hanging_up() as silent, pytest.raises(PeerFailure, match="rank 2 is gone"):
        wait_for_all(replace(ME, rank=1), store=silent, deadline=deadline, abandoned=lambda: lost)
    assert time.monotonic() < deadline


@contextmanager
def hanging_up(calls: float = math.inf) -> Iterator[str]:
    """The address of a store that hangs up on so many calls, and answers the later ones."""
    with closing(KeyValueStore("127.0.0.1")) as store:
        numbers, accept = itertools.count(), store._server.verify_request
        with patch.object(store._server, "verify_request", lambda *call: next(numbers) >= calls and accept(*call)):
            yield store.address


def together(
    peers: list[Credentials], *, deadline_s: float = 180.0, waits_s: Mapping[int, float] = MappingProxyType({})
) -> list[BaseException | None]:
    """What each of the peers, all at one new store, got: an error or nothing; ``waits_s`` are other deadlines, by
    rank."""
    with closing(KeyValueStore("127.0.0.1")) as store, ThreadPoolExecutor(len(peers)) as pool:
        now, meet = time.monotonic(), partial(wait_for_all, store=store.address)
        going = [pool.submit(meet, one, deadline=now + waits_s.get(one.rank, deadline_s)) for one in peers]
        return [one.exception(timeout=180.0) for one in going]
