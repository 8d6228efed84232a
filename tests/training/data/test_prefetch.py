"""The loading thread: ahead of who asks, never far, and never with something that was not asked for."""

from __future__ import annotations

import threading

import pytest

from kungfu.training.data.prefetch import Prefetch

DEADLINE_S = 180.0


class Loading:
    """Loads numbers as text; says which it has begun, and waits where it is told to."""

    def __init__(self, *, failing: frozenset[int] = frozenset()) -> None:
        self.begun: list[int] = []
        self.threads: set[str] = set()
        self.failing = failing
        self.gate = threading.Event()
        self.gate.set()
        self._moved = threading.Condition()

    def __call__(self, key: int) -> str:
        with self._moved:
            self.begun.append(key)
            self.threads.add(threading.current_thread().name)
            self._moved.notify_all()
        assert self.gate.wait(DEADLINE_S)
        if key in self.failing:
            raise OSError(f"cannot read {key}")
        return str(key)

    def awaited(self, count: int) -> list[int]:
        """What was begun, once so many were."""
        with self._moved:
            assert self._moved.wait_for(lambda: len(self.begun) >= count, DEADLINE_S)
            return list(self.begun)


def ahead(loading: Loading) -> Prefetch[int]:
    return Prefetch(loading, following=lambda key: key + 1)


def begun(loading: Loading) -> Prefetch[int]:
    """It has loaded the first one, and runs ahead of it."""
    prefetch = ahead(loading)
    assert prefetch.get(0) == "0"
    prefetch.run_ahead(0)
    return prefetch


def test_the_next_two_are_loaded_while_nobody_asks_and_no_more() -> None:
    loading = Loading()
    prefetch = begun(loading)
    assert loading.awaited(3) == [0, 1, 2]
    assert prefetch.get(1) == "1"
    assert loading.begun == [0, 1, 2], "the third is asked for when the second is in use"
    prefetch.run_ahead(1)
    assert loading.awaited(4) == [0, 1, 2, 3]
    prefetch.close()
    assert loading.threads == {"kungfu-loader"}


def test_a_guess_that_is_wrong_is_thrown_away_and_so_is_what_hung_on_it() -> None:
    loading = Loading()
    prefetch = ahead(loading)
    prefetch.get(0)
    loading.gate.clear()
    prefetch.run_ahead(0)
    assert loading.awaited(2) == [0, 1]
    loading.gate.set()
    assert prefetch.get(50) == "50"
    prefetch.run_ahead(50)
    assert prefetch.get(51) == "51"
    prefetch.close()
    assert [key for key in loading.begun if key >= 50][:2] == [50, 51]


def test_an_error_of_loading_reaches_who_asks_for_that_batch_only() -> None:
    prefetch = begun(Loading(failing=frozenset({1})))
    with pytest.raises(OSError, match="cannot read 1"):
        prefetch.get(1)
    assert prefetch.get(2) == "2"
    prefetch.close()


def test_an_error_of_a_guess_that_nobody_needs_is_nobodys() -> None:
    prefetch = begun(Loading(failing=frozenset({1, 2})))
    assert prefetch.get(7) == "7"
    prefetch.close()


def test_it_tells_whether_a_batch_is_there_without_taking_it() -> None:
    loading = Loading(failing=frozenset({8}))
    prefetch = ahead(loading)
    loading.gate.clear()
    assert not prefetch.is_loaded(7, within_s=0.0)
    assert not prefetch.is_loaded(7, within_s=0.01)
    loading.gate.set()
    assert prefetch.is_loaded(7, within_s=DEADLINE_S)
    assert prefetch.get(7) == "7"
    assert prefetch.is_loaded(8, within_s=DEADLINE_S), "nothing is to be waited for"
    with pytest.raises(OSError, match="cannot read 8"):
        prefetch.get(8)
    assert loading.begun == [7, 8]
    prefetch.close()


def test_the_thread_ends_with_its_loop() -> None:
    prefetch = begun(Loading())
    prefetch.close()
    prefetch.close()
    assert not prefetch._thread.is_alive()


def test_a_loop_that_is_abandoned_may_end_in_the_thread_itself() -> None:
    held: list[Prefetch[int]] = []
    held.append(Prefetch(lambda key: held[0].close() or key, following=lambda key: None))
    assert held[0].get(3) == 3
    held[0]._thread.join(DEADLINE_S)
    assert not held[0]._thread.is_alive()


def test_a_read_that_hangs_does_not_hold_up_the_end(monkeypatch) -> None:
    monkeypatch.setattr("kungfu.training.data.prefetch._END_S", 0.01)
    loading = Loading()
    prefetch = ahead(loading)
    prefetch.get(0)
    loading.gate.clear()
    prefetch.run_ahead(0)
    loading.awaited(2)
    with pytest.warns(RuntimeWarning, match=r"has not ended within 0\.01 s"):
        prefetch.close()
    loading.gate.set()
    prefetch._thread.join(DEADLINE_S)
    assert not prefetch._thread.is_alive()
