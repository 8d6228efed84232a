"""A message that waits for too long is given up, and the late peers are named."""

import threading
from collections.abc import Iterable
from contextlib import ExitStack, closing

import pytest

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.attachment.horovod.key_value_store import KeyValueStore, get
from kungfu.runtime.attachment.horovod.stall_detector import MessageProgress, StallDetector, updated
from kungfu.runtime.ipc.handshake import Credentials
from tests.jobs.harness import awaited

# However long the deadline is: who waits says so soon.
LOOKING_OFTEN = ("kungfu.runtime.attachment.horovod.stall_detector._MOST_BETWEEN_LOOKS_S", 0.05)


@pytest.mark.parametrize(
    ("before", "count", "now", "waiting_s"),
    [
        (5, 5, 13.0, 3.0),  # the same message as before
        (5, 7, 13.0, 0.0),  # another message, just seen
        (5, 6, 13.0, 0.0),  # between messages
        (4, 4, 1000.0, 0.0),  # a step that takes long
    ],
)
def test_the_wait_is_counted_from_the_first_sight_of_a_message(
    before: int, count: int, now: float, waiting_s: float
) -> None:
    assert updated(MessageProgress(count=before, since=10.0), count=count, now=now).waiting_s(now) == waiting_s


def test_the_late_peer_is_named_and_those_who_wait_too_are_not() -> None:
    reasons = watched({0: 1, 1: 4, 2: 1})
    assert "for rank 1" in str(reasons[0])
    assert "for rank 1" in str(reasons[2])
    assert [reasons[rank].waiting_for for rank in (0, 2)] == [(1,), (1,)]
    assert 1 not in reasons


def test_peers_that_all_wait_are_in_different_messages() -> None:
    assert "not all run the same program" in str(watched({0: 1, 1: 3})[0])


def test_without_a_store_a_wait_still_ends() -> None:
    store = KeyValueStore("127.0.0.1")
    store.close()
    one, given_up = detecting(1, 2, store, deadline_s=0.2)
    stop = one.begin()
    assert given_up.wait(180.0)
    stop()
    assert "store of rank 0 does not answer" in str(one.gave_up)


def test_a_wait_ends_once_the_job_has_given_up_a_peer_of_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*LOOKING_OFTEN)
    lost, known = PeerFailure("rank 1 (peer 4) is gone: its host is lost", ranks=[1]), list[PeerFailure]()
    with closing(KeyValueStore("127.0.0.1")) as store, ExitStack() as ending:
        (waits, ended), (between, other) = (detecting(0, 2, store, count=count) for count in (1, 2))
        for one in (waits, between):
            one.abandoned = lambda: known[0] if known else None
            ending.callback(one.begin())
        await_told(store, [0])
        assert waits.gave_up is None
        known.append(lost)
        assert ended.wait(180.0)
        assert waits.gave_up is lost
        assert not other.is_set(), "a peer between messages learns it before its next step"


def test_a_woken_detector_gives_the_message_a_moment_and_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kungfu.runtime.attachment.horovod.stall_detector._MOST_BETWEEN_LOOKS_S", 600.0)
    lost, looks = PeerFailure("rank 1 (peer 4) is gone: its host is lost", ranks=[1]), list[int]()
    with closing(KeyValueStore("127.0.0.1")) as store, ExitStack() as ending:
        (waits, ended), (fails, other) = (detecting(0, 2, store, deadline_s=16 * 600.0) for _ in range(2))
        fails.look = lambda: looks.append(1) or min(len(looks), 2)  # the message of the first look fails by itself
        for one in (waits, fails):
            one.abandoned = lambda: lost
            ending.callback(one.begin())
            one.woken.set()
        assert ended.wait(180.0)
        assert waits.gave_up is lost
        awaited(lambda: len(looks) > 3, what="looks without being woken again", deadline_s=180.0)
        assert not other.is_set()


def test_a_stopped_detector_gives_nothing_up() -> None:
    with closing(KeyValueStore("127.0.0.1")) as store:
        one, _ = detecting(0, 2, store)
        one.begin()()
    assert (one.late, one.gave_up) == (None, None)


def test_late_peers_are_noted_in_time_by_the_lowest_rank_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*LOOKING_OFTEN)
    with ExitStack() as ending:
        store = ending.enter_context(closing(KeyValueStore("127.0.0.1")))
        (first, ends), (second, also_ends) = (detecting(rank, 3, store) for rank in (0, 2))
        for one in (first, second):
            ending.callback(one.begin())
        await_told(store, (0, 2))
        first.deadline_s = second.deadline_s = 6.0
        awaited(lambda: first.late is not None, what="the late rank", deadline_s=180.0)
        assert (first.late.ranks, first.late.tag, first.gave_up) == ((1,), "a message", None)
        assert first.late.waited_s > 2.0
        first.deadline_s = second.deadline_s = 0.5  # holds for the wait under way
        assert ends.wait(180.0)
        assert also_ends.wait(180.0)
        assert ["for rank 1" in str(one.gave_up) for one in (first, second)] == [True, True]
        assert second.late is None


def detecting(
    rank: int, size: int, store: KeyValueStore, *, count: int = 1, deadline_s: float = 60.0
) -> tuple[StallDetector, threading.Event]:
    """The detector of a peer whose counter of messages stands still, and the event that it has given up."""
    me, given_up = Credentials("job", 1, rank, size, b"secret"), threading.Event()
    return StallDetector(me, store.address, deadline_s, lambda: count, given_up.set), given_up


def await_told(store: KeyValueStore, ranks: Iterable[int]) -> None:
    """Waits until all of these have said that they wait; before that none of them can name those who have not."""
    for rank in ranks:
        while get(store.address, key=f"/kungfu-waiting/{rank}") != b"waiting":
            pass


def watched(counts: dict[int, int]) -> dict[int, DeadlineExceeded]:
    """Why the peers gave up, by rank, when their counters of messages stand still; odd is in a message."""
    waiting = [rank for rank, count in counts.items() if count % 2]
    with ExitStack() as ending:
        ending.enter_context(pytest.MonkeyPatch.context()).setattr(*LOOKING_OFTEN)
        store = ending.enter_context(closing(KeyValueStore("127.0.0.1")))
        detectors = {rank: detecting(rank, len(counts), store, count=count) for rank, count in counts.items()}
        for one, _ in detectors.values():
            ending.callback(one.begin())
        await_told(store, waiting)
        for one, _ in detectors.values():
            one.deadline_s = 0.1
        assert all(detectors[rank][1].wait(180.0) for rank in waiting)
    return {rank: one.gave_up for rank, (one, _) in detectors.items() if one.gave_up is not None}
