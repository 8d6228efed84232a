"""Server-sent events to one browser: a response that lasts until the browser disconnects.

A lost browser is detected by its closed connection, or by a timeout in sending; other browsers are not affected. The
lost browser reconnects by itself, and sends the id of its last update.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from kungfu.cli.page.feed import PageFeed

# Seconds between comments: proxies and browsers drop silent connections.
_HEARTBEAT_S = 15.0
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
_AGAIN_AFTER_MS = 2000


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
        """The event of the next wake-up; get it before looking for updates, so that no update is missed."""
        return self._event

    def _wake(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()


class EventStream:
    """The updates of a page for one browser.

    Args:
        feed: The feed with the updates.
        waking: Wakes the stream when there is an update.
        last: The id of the browser's last update; empty for none.
    """

    def __init__(self, feed: PageFeed, waking: WakeUp, *, last: str) -> None:
        self._feed, self._waking = feed, waking
        self._known = feed.log.number_of(last)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends updates until the browser disconnects or the page ends."""
        self._feed.viewers += 1
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.viewers -= 1
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
            missed, is_over = self._feed.log.missed(self._known), self._feed.log.is_over
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
