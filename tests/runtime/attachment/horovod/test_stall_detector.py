"""A message that waits for too long is given up, and the late peers are named."""

from collections.abc import Iterable
from contextlib import ExitStack, closing
from queue import Queue

import pytest

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.attachment.horovod.key_value_store import KeyValueStore, get
from kungfu.runtime.attachment.horovod.stall_detector import MessageProgress, StallDetector, updated

# However long the deadline is: who waits says so soon.
LOOKING_OFTEN = ("kungfu.runtime.attachment.horovod.stall_detector._MOST_BETWEEN_LOOKS_S", 0.05)


@pytest.mark.parametrize(
    ("count", "now", "waiting_s"),
    [
        (5, 13.0, 3.0),  # the same message as before
        (7, 13.0, 0.0),  # another message, just seen
        (6, 13.0, 0.0),  # between messages
    ],
)
def test_the_wait_is_counted_from_the_first_sight_of_a_message(count: int, now: float, waiting_s: float) -> None:
    assert updated(MessageProgress(count=5, since=10.0), count=count, now=now).waiting_s(now) == waiting_s


def test_a_step_that_takes_long_is_no_wait() -> None:
    assert updated(MessageProgress(count=4, since=10.0), count=4, now=1000.0).waiting_s(1000.0) == 0


def test_the_late_peer_is_named_and_those_who_wait_too_are_not() -> None:
    reasons = watched({0: 1, 1: 4, 2: 1})
    assert "for rank 1" in str(reasons[0])
    assert "for rank 1" in str(reasons[2])
    assert [reasons[rank].waiting_for for rank in (0, 2)] == [(1,), (1,)]
    assert 1 not in reasons


def test_peers_that_all_wait_are_in_different_messages() -> None:
    assert "not all run the same program" in str(watched({0: 1, 1: 3})[0])


def test_without_a_store_a_wait_still_ends() -> None:
    store, reasons = KeyValueStore("127.0.0.1"), Queue[DeadlineExceeded]()
    store.close()
    alone = {"rank": 1, "size": 2, "store": store.address, "note": reasons.put}
    stop = StallDetector(**alone, deadline_s=lambda: 0.2, look=lambda: 1, give_up=reasons.put).begin()
    reason = reasons.get(timeout=180.0)
    stop()
    assert "store of rank 0 does not answer" in str(reason)


def test_a_stopped_detector_gives_nothing_up() -> None:
    reasons: list[DeadlineExceeded] = []
    with closing(KeyValueStore("127.0.0.1")) as store:
        alone = {"rank": 0, "size": 2, "store": store.address, "note": reasons.append}
        StallDetector(**alone, deadline_s=lambda: 60.0, look=lambda: 1, give_up=reasons.append).begin()()
    assert reasons == []


def test_late_peers_are_noted_in_time_by_the_lowest_rank_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late peers are noted before the wait is given up, and only by the lowest rank that waits."""
    monkeypatch.setattr(*LOOKING_OFTEN)
    deadline, notes = [60.0], {0: Queue(), 2: Queue()}
    with ExitStack() as ending:
        store = ending.enter_context(closing(KeyValueStore("127.0.0.1")))
        for rank, noted in notes.items():
            shared = {"rank": rank, "size": 3, "store": store.address, "deadline_s": lambda: deadline[0]}
            ending.callback(StallDetector(**shared, look=lambda: 1, note=noted.put, give_up=noted.put).begin())
        await_told(store, notes)
        deadline[0] = 6.0
        late = notes[0].get(timeout=180.0)
        assert (late.ranks, late.tag) == ((1,), "a message")
        assert late.waited_s > 2.0
        deadline[0] = 0.5  # holds for the wait under way
        assert "for rank 1" in str(notes[0].get(timeout=180.0))
        assert "for rank 1" in str(notes[2].get(timeout=180.0)), "the first thing that rank 2 says"


def await_told(store: KeyValueStore, ranks: Iterable[int]) -> None:
    """Waits until all of these have said that they wait; before that none of them can name those who have not."""
    for rank in ranks:
        while get(store.address, key=f"/kungfu-waiting/{rank}") != b"waiting":
            pass


def watched(counts: dict[int, int]) -> dict[int, DeadlineExceeded]:
    """Why the peers gave up, by rank, when their counters of messages stand still; odd is in a message."""
    given_up = {rank: Queue[DeadlineExceeded]() for rank in counts}
    waiting = [rank for rank, count in counts.items() if count % 2]
    deadline = [60.0]
    with ExitStack() as ending:
        ending.enter_context(pytest.MonkeyPatch.context()).setattr(*LOOKING_OFTEN)
        store = ending.enter_context(closing(KeyValueStore("127.0.0.1")))
        for rank, count in counts.items():
            detector = StallDetector(
                rank=rank,
                size=len(counts),
                store=store.address,
                deadline_s=lambda: deadline[0],
                look=lambda count=count: count,  # type: ignore[misc]  # binds the count of this turn of the loop
                note=lambda late: None,
                give_up=given_up[rank].put,
            )
            ending.callback(detector.begin())
        await_told(store, waiting)
        deadline[0] = 0.1
        reasons = {rank: given_up[rank].get(timeout=180.0) for rank in waiting}
    return reasons | {rank: more.get() for rank, more in given_up.items() if not more.empty()}
