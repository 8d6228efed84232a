"""Where the threads of a job leave what is to be shown, and the one that paints finds it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kungfu.cli.console.status import Status, after_event, after_step
from kungfu.event_log.events import LoggedEvent

__all__ = ["KUNGFU", "Board", "News", "Said"]

# More than this between two paintings is more than a person reads; the log files have it all.
_MOST_LINES = 500
KUNGFU = "kungfu"


@dataclass(frozen=True)
class Said:
    """A line, and who said it: a peer, or ``kungfu``."""

    who: str
    text: str


@dataclass(frozen=True)
class News:
    """What came since the last time: the newest lines, how many older ones were dropped, and the status now."""

    said: tuple[Said, ...]
    dropped: int
    status: Status


class Board:
    """Takes from many threads without ever making one wait for a terminal; keeps the newest lines."""

    def __init__(self) -> None:
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._said: deque[Said] = deque(maxlen=_MOST_LINES)
        self._put = 0
        self._status = Status()

    def say(self, said: Said) -> None:
        """A line to show."""
        with self._lock:
            self._said.append(said)
            self._put += 1
        self._changed.set()

    def event(self, event: LoggedEvent) -> None:
        """Something that changes the status."""
        with self._lock:
            self._status = after_event(self._status, event)
        self._changed.set()

    def step(self, figures: Mapping[str, Any]) -> None:
        """The figures of a step."""
        with self._lock:
            self._status = after_step(self._status, figures)
        self._changed.set()

    def wait(self, timeout_s: float) -> None:
        """Until something has come since the last ``take``, or ``wake``, or for so long."""
        self._changed.wait(timeout_s)

    def wake(self) -> None:
        """Nobody shall wait any longer."""
        self._changed.set()

    def take(self) -> News:
        """Everything since the last call."""
        with self._lock:
            self._changed.clear()
            news = News(tuple(self._said), self._put - len(self._said), self._status)
            self._said.clear()
            self._put = 0
            return news
