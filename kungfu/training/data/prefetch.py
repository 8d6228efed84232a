"""Loads the predicted next batches in a separate thread while a step runs."""

from __future__ import annotations

import atexit
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, Generic, TypeVar

# One batch ready, one being loaded: this hides an occasional slow read, and bounds memory.
_AHEAD = 2
_END_S = 10.0

Key = TypeVar("Key")
_Wanted = SimpleQueue[tuple[Any, "Future[Any]"] | None]


class Prefetch(Generic[Key]):
    """Loads the requested key, then the keys predicted by ``following``, at most two ahead, all in one thread.

    If a key other than the predicted one is requested, the predicted loads are discarded.
    """

    def __init__(self, load: Callable[[Key], Any], *, following: Callable[[Key], Key | None]) -> None:
        self._following = following
        self._wanted: _Wanted = SimpleQueue()
        self._guesses: deque[tuple[Key, Future[Any]]] = deque()
        # A daemon thread: a read that hangs must not keep a failed program from ending.
        self._thread = Thread(target=_serve, args=(self._wanted, load), name="kungfu-loader", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread killed by Python inside TensorFlow would change the exit code

    def get(self, key: Key) -> Any:
        """Returns the result of ``load`` for the key, or raises its error; waits until the user's loading is done."""
        self._ask_first(key)
        return self._guesses.popleft()[1].result()

    def is_loaded(self, key: Key, within_s: float) -> bool:
        """True if the key, to be passed to `get` next, is loaded, or fails to load, within this many seconds."""
        self._ask_first(key)
        return bool(wait([self._guesses[0][1]], within_s).done)

    def _ask_first(self, key: Key) -> None:
        # Nothing, or another key, was predicted: the membership or the batch size has changed meanwhile.
        if not self._guesses or self._guesses[0][0] != key:
            self._forget()
            self._ask(key)

    def run_ahead(self, key: Key) -> None:
        """Starts loading the keys after ``key``, which is in use."""
        newest: Key | None = self._guesses[-1][0] if self._guesses else key
        while len(self._guesses) < _AHEAD:
            newest = self._following(newest) if newest is not None else None
            if newest is None:  # the end of the last epoch
                return
            self._ask(newest)

    def close(self) -> None:
        """Ends the thread, after its current read; idempotent."""
        atexit.unregister(self.close)
        self._forget()
        self._wanted.put(None)
        if self._thread is current_thread():  # an abandoned loop may be collected in any thread, also in this one
            return
        self._thread.join(_END_S)
        if self._thread.is_alive():
            warnings.warn(
                f"training.batches(): loading a batch that nobody needs has not ended within {_END_S:g} s; the program "
                "goes on without waiting for it",
                RuntimeWarning,
                stacklevel=2,
            )

    def _ask(self, key: Key) -> None:
        future: Future[Any] = Future()
        self._guesses.append((key, future))
        self._wanted.put((key, future))

    def _forget(self) -> None:
        for _, future in self._guesses:
            future.cancel()
        self._guesses.clear()


def _serve(wanted: _Wanted, load: Callable[[Any], Any]) -> None:
    while (task := wanted.get()) is not None:
        key, future = task
        if not future.set_running_or_notify_cancel():  # a discarded prediction
            continue
        try:
            future.set_result(load(key))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks for it
            future.set_exception(error)
        del task, key, future  # the batch belongs to the caller
