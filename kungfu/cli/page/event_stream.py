"""Server-sent events: the log of updates, and a stream of these updates to each browser.

Every change of the page is an update with a number, encoded once for all browsers. The log contains the bytes of the
newest updates. A browser that is a few updates behind, for example after a lost connection, receives the missing
updates. A new browser, or a browser that is further behind, receives the whole state. There is no queue per browser, so
no browser delays another or fills memory.

A lost browser is detected by its closed connection, or by a timeout in sending; other browsers are not affected. The
lost browser reconnects by itself, and sends the id of its last update. The id consists of the name of the log and the
update's number, so an id from an earlier process is not recognized.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

# With at most one update a second, the log covers the last minute.
_KEPT = 60
# Seconds between comments: proxies and browsers drop silent connections.
_HEARTBEAT_S = 15.0
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
_AGAIN_AFTER_MS = 2000


@dataclass(frozen=True)
class Backlog:
    """The updates that a browser has missed: ``data`` to send, and the ``number`` of the last of these updates."""

    data: bytes
    number: int


class UpdateLog:
    """The newest updates, published by one thread; ``whole`` returns the whole state, for new and late readers."""

    def __init__(self, whole: Callable[[], str]) -> None:
        self.viewers, self.is_over = 0, False
        self._whole, self._lock = whole, threading.Lock()
        self._name = secrets.token_hex(4)
        self._newest = 0
        self._updates: deque[bytes] = deque(maxlen=_KEPT)
        self._snapshot: Backlog | None = None
        self._wake: Callable[[], None] = lambda: None

    def on_update(self, wake: Callable[[], None]) -> None:
        """Registers ``wake``, which the publishing thread calls after each update."""
        self._wake = wake

    def publish(self, update: str) -> None:
        """Adds an update, given as JSON, and wakes the readers of the log."""
        with self._lock:
            self._newest += 1
            self._updates.append(self._framed("update", update, self._newest))
        self._wake()

    def end(self) -> None:
        """Ends the log: browsers are notified of the end, and do not reconnect."""
        self.is_over = True
        self._wake()

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


class WakeUp:
    """Wakes all streams of an event loop when there is an update."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def from_thread(self) -> None:
        """Wakes all streams; may be called from any thread."""
        # The server may have ended while the record was being read.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    def next(self) -> asyncio.Event:
        """The `asyncio.Event` that the next wake-up sets; to miss none, get this object before looking for updates."""
        return self._event

    def _wake(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()


class EventStream:
    """The updates of a page for one browser.

    Args:
        last: The id of the browser's last update; empty for none.
    """

    def __init__(self, log: UpdateLog, waking: WakeUp, *, last: str) -> None:
        self._log, self._waking, self._known = log, waking, log.number_of(last)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends updates until the browser disconnects or the page ends."""
        self._log.viewers += 1
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._log.viewers -= 1
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async for data in self._updates():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _updates(self) -> AsyncIterator[bytes]:
        yield f"retry: {_AGAIN_AFTER_MS}\n\n".encode()
        while True:
            woken = self._waking.next()
            # The end of the log is checked first, since an update may be published right before the end.
            is_over, missed = self._log.is_over, self._log.missed(self._known)
            if missed is not None:
                self._known = missed.number
                yield missed.data
            elif is_over:
                yield b"event: over\ndata: {}\n\n"
                return
            else:
                try:
                    await asyncio.wait_for(woken.wait(), _HEARTBEAT_S)
                except TimeoutError:
                    yield b": here\n\n"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
