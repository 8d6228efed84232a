"""The log of updates for browsers, encoded once for all of them, however many and however slow they are.

Every change of what the page shows is an update with a number. Of the newest updates the bytes are kept, and a browser
that is some of them behind gets those that it lacks: after a second, or after its connection was lost. One that is
further behind, or new, gets the whole. Nothing is queued for a browser: none can hold up another, or fill memory.

The form is that of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html): the id of an
update is the name of this log and its number, so that an id of an earlier process means nothing here.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

# With an update a second at most, what a browser has missed of the last minute.
_KEPT = 60


@dataclass(frozen=True)
class Backlog:
    """The updates that a browser has missed: ``data`` to send, after which it has update ``number``."""

    data: bytes
    number: int


class UpdateLog:
    """The newest updates; one thread publishes, others ask what they have missed.

    Args:
        whole: Gives the whole as JSON; called by whoever asks, at most once for each update.
    """

    def __init__(self, whole: Callable[[], str]) -> None:
        self._whole, self._lock = whole, threading.Lock()
        self._name = secrets.token_hex(4)
        self._newest = 0
        self._updates: deque[bytes] = deque(maxlen=_KEPT)
        self._snapshot: Backlog | None = None
        self._is_over = False
        self._wake: Callable[[], None] = lambda: None

    def on_update(self, wake: Callable[[], None]) -> None:
        """Has ``wake`` called after each update, by the thread that publishes."""
        self._wake = wake

    def publish(self, update: str) -> None:
        """Adds an update, as JSON."""
        with self._lock:
            self._newest += 1
            self._updates.append(self._framed("update", update, self._newest))
        self._wake()

    def end(self) -> None:
        """Ends the log: browsers learn that the page ends here, and do not come back."""
        with self._lock:
            self._is_over = True
        self._wake()

    @property
    def is_over(self) -> bool:
        """True if no further update comes."""
        return self._is_over

    def number_of(self, identifier: str) -> int | None:
        """The number of an update by its id; ``None`` if it is none of this log."""
        name, _, number = identifier.partition(".")
        known = name == self._name and number.isdecimal() and len(number) < 16
        return int(number) if known and int(number) <= self._newest else None

    def missed(self, since: int | None) -> Backlog | None:
        """The updates after ``since``, for a browser without any the whole state; ``None`` if there are none."""
        with self._lock:
            # Before the first update nothing was read of the record, and there is nothing to show.
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
