"""A message that waits for too long is given up, and the late peers are named."""

import threading
from contextlib import ExitStack

import pytest

from kungfu.runtime.attachment.horovod.store import Store
from kungfu.runtime.attachment.horovod.watch import Pulse, Watch, seen


@pytest.mark.parametrize(
    ("count", "now", "waiting_s"),
    [
        (5, 13.0, 3.0),  # the same message as before
        (7, 13.0, 0.0),  # another message, just seen
        (6, 13.0, 0.0),  # between messages
    ],
)
def test_the_wait_is_counted_from_the_first_sight_of_a_message(count: int, now: float, waiting_s: float) -> None:
    assert seen(Pulse(count=5, since=10.0), count=count, now=now).waiting_s(now) == waiting_s


def test_a_step_that_takes_long_is_no_wait() -> None:
    assert seen(Pulse(count=4, since=10.0), count=4, now=1000.0).waiting_s(1000.0) == 0


def test_the_late_peer_is_named_and_those_who_wait_too_are_not() -> None:
    reasons = watched({0: 1, 1: 4, 2: 1})
    assert "for rank 1" in reasons[0]
    assert "for rank 1" in reasons[2]
    assert 1 not in reasons


def test_peers_that_all_wait_are_in_different_messages() -> None:
    assert "not all run the same program" in watched({0: 1, 1: 3})[0]


def test_without_a_store_a_wait_still_ends() -> None:
    store = Store("127.0.0.1")
    store.close()
    given_up = threading.Event()
    reasons: list[str] = []

    def give_up(reason: str) -> None:
        reasons.append(reason)
        given_up.set()

    stop = Watch(rank=1, size=2, store=store.address, deadline_s=0.2, look=lambda: 1, give_up=give_up).begin()
    assert given_up.wait(10)
    stop()
    assert "store of rank 0 does not answer" in reasons[0]


def test_a_stopped_watch_gives_nothing_up() -> None:
    store = Store("127.0.0.1")
    reasons: list[str] = []
    try:
        watch = Watch(rank=0, size=2, store=store.address, deadline_s=60, look=lambda: 1, give_up=reasons.append)
        watch.begin()()
    finally:
        store.close()
    assert reasons == []


def watched(counts: dict[int, int]) -> dict[int, str]:
    """Why the peers gave up, by rank, when their counters of messages stand still; odd is in a message."""
    reasons: dict[int, str] = {}
    given_up = {rank: threading.Event() for rank, count in counts.items() if count % 2}
    with ExitStack() as ending:
        store = Store("127.0.0.1")
        ending.callback(store.close)
        for rank, count in counts.items():

            def give_up(reason: str, rank: int = rank) -> None:
                reasons[rank] = reason
                given_up[rank].set()

            watch = Watch(
                rank=rank,
                size=len(counts),
                store=store.address,
                deadline_s=1.0,
                look=lambda count=count: count,  # type: ignore[misc]  # binds the count of this turn of the loop
                give_up=give_up,
            )
            ending.callback(watch.begin())
        assert all(event.wait(20) for event in given_up.values())
    return reasons
