"""All say that they are there, or an error says who did not."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure
from kungfu.runtime.attachment.horovod.key_value_store import KeyValueStore, listens_at
from kungfu.runtime.attachment.horovod.rendezvous import Roster, wait_for_all

ROSTER = Roster(store="", job="job", view=3, rank=0, size=3, secret=b"secret")


def test_all_go_on_when_the_last_has_come() -> None:
    assert together([replace(ROSTER, rank=rank) for rank in (2, 0, 1)]) == [None, None, None]


def test_the_ranks_that_did_not_come_are_named() -> None:
    (error,) = together([replace(ROSTER, rank=1)], deadline_s=0.3)
    assert isinstance(error, DeadlineExceeded)
    assert "for rank 0, 2 of 3 to come to view 3" in str(error)


@pytest.mark.parametrize("other", [{"secret": b"wrong"}, {"job": "another"}, {"view": 2}, {"size": 2}])
def test_a_peer_of_another_job_view_size_or_secret_is_refused(other: dict[str, object]) -> None:
    stranger = replace(ROSTER, rank=1, **other)  # type: ignore[arg-type]  # the fields differ in type
    errors = together([replace(ROSTER, rank=0), stranger, replace(ROSTER, rank=2)], deadline_s=0.3)
    assert isinstance(errors[0], PeerFailure)
    assert isinstance(errors[2], PeerFailure)
    assert "rank 1 to view 3 of job 'job' has not proved" in str(errors[0])


def test_a_store_that_is_gone_means_that_rank_0_is() -> None:
    store = KeyValueStore("127.0.0.1")
    store.close()
    with pytest.raises(PeerFailure, match=f"rank 0 of view 3 does not answer at {listens_at(store.address)}, where"):
        wait_for_all(replace(ROSTER, rank=1, store=store.address), deadline=time.monotonic() + 5)


def together(rosters: list[Roster], *, deadline_s: float = 180.0) -> list[BaseException | None]:
    """What each of the peers, all at one new store, got: an error or nothing."""
    store = KeyValueStore("127.0.0.1")
    try:
        with ThreadPoolExecutor(len(rosters)) as pool:
            deadline = time.monotonic() + deadline_s
            going = [
                pool.submit(wait_for_all, replace(roster, store=store.address), deadline=deadline) for roster in rosters
            ]
            return [_error(one) for one in going]
    finally:
        store.close()


def _error(one: Future[None]) -> BaseException | None:
    error = one.exception(timeout=180.0)
    assert error is None or isinstance(error, KungfuError)
    return error
