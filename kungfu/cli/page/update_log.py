"""The log of updates for browsers; each update is encoded once for all browsers, however slow.

Every change of the page is an update with a number. The log keeps the bytes of the newest updates. A browser that is a
few updates behind, for example after a lost connection, gets the missing updates. A new browser, or a browser that is
further behind, gets the whole state. There is no queue per browser, so no browser delays another or fills memory.

The format is server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). The id of an update
is the name of this log and the update's number, so that an id of an earlier process is not recognized.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

# With at most one update a second, the log covers the last minute.
_KEPT = 60


@dataclass(frozen=True)
class Backlog:
    """The updates that a browser has missed: ``data`` to send, and the ``number`` of the last of these updates."""

    data: bytes
    number: int


class UpdateLog:
    """The newest updates, published by one thread; readers get the whole state from ``whole`` if they need it."""

    def __init__(self, whole: Callable[[], str]) -> None:
        self._whole, self._lock = whole, threading.Lock()
        self._name = secrets.token_hex(4)
        self._newest = 0
        self._updates: deque[bytes] = deque(maxlen=_KEPT)
        self._snapshot: Backlog | None = None
        self._is_over = False
        self._wake: Callable[[], None] = lambda: None

    def on_update(self, wake: Callable[[], None]) -> None:
        """Registers ``wake``, which the publishing thread calls after each update."""
        self._wake = wake

    def publish(self, update: str) -> None:
        """Adds an update, as JSON."""
        with self._lock:
            self._newest += 1
            self._updates.append(self._framed("update", update, self._newest))
        self._wake()

    def end(self) -> None:
        """Ends the log: browsers are notified of the end, and do not reconnect."""
        with self._lock:
            self._is_over = True
        self._wake()

    @property
    def is_over(self) -> bool:
        """True if there are no further updates."""
        return self._is_over

    def number_of(self, identifier: str) -> int | None:
        """The number of an update by its id; ``None`` if this log has no such update."""
        name, _, number = identifier.partition(".")
        known = name == self._name and number.isdecimal() and len(number) < 16
        return int(number) if known and int(number) <= self._newest else None

    def missed(self, since: int | None) -> Backlog | None:
        """The updates after ``since``, or the whole state for a new or late browser; ``None`` if nothing was missed."""
        with self._lock:
            # Before the first update no line of the record was read, so there is nothing to show.
            if not self._newest or since == self._newest:
                return None
            behind = self._newest - since if since is not None else len(self._updates) + 1
            if behind <= len(self._updates):
                return Backlog(b"".join([*self._updates][-behind:]), self._newest)
            if self._snapshot is None or self._snapshot.number != self._newest:
                self._snapshot = Backlog(self._framed("snapshot", self._whole(), self._newest), self._newest)
            return self._snapshot

    def _framed(self, event: str, text: str, number: int) -> bytes:
        return f"id: {self._name}.{number}\nevent: {event}\ndata: {text}\n\n".encode()
