"""A call that outlives its connection.

TCP retransmits with growing pauses while a link is down. So after an outage a message may be delayed for as long again
as the outage lasted; a fresh connection has no such delay. Therefore an unanswered call is repeated over a fresh
connection, while the first connection stays open. The first answer counts; the other end must recognize a repetition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.ipc import rpc

_MOST = 6  # simultaneous connections
# A port may refuse for this long before its process counts as ended: a connection may break while the process runs.
_REFUSED_S = 0.6
_PAUSE_S = 0.1  # pause after a failed attempt


@dataclass(frozen=True)
class _Attempt:
    """A sent request: its channel and its pending answer."""

    channel: rpc.Channel
    answer: Any


class Persistent:
    """Calls one method of the service at an address, and repeats an unanswered call over fresh connections.

    Args:
        address: ``HOST:PORT`` of the service.
        method: Returns the method for a channel.
        again_s: Seconds without an answer after which a request is repeated over a fresh connection.
    """

    def __init__(self, address: str, *, secret: str, method: Callable[[Any], rpc.Method], again_s: float) -> None:
        self._address, self._secret, self._method, self.again_s = address, secret, method, again_s
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._channels: list[rpc.Channel] = []

    def ask(self, request: Callable[[], Any], *, patience_s: float) -> Any:
        """Sends a request until it is answered.

        Args:
            request: Makes the message; called for each attempt.
            patience_s: Seconds after which only one last attempt is made.

        Returns:
            The first answer.

        Raises:
            DeadlineExceeded: No attempt was answered, including the last one.
            PeerFailure: This object was closed.
            grpc.RpcError: The other end answers with an error, or its port refuses for more than 0.6 s.
        """
        began, attempts = time.monotonic(), list[_Attempt]()
        news = threading.Event()
        try:
            while True:
                left_s = began + patience_s - time.monotonic()
                last = left_s <= 0
                attempts.append(self._send(request(), patience_s, news, fresh=bool(attempts)))
                wait_s = self.again_s if last else min(self.again_s, left_s)
                answer = self._first(attempts, news, began, until=time.monotonic() + wait_s)
                if answer is not None:
                    return answer
                # This thread may have been frozen, so only an attempt after ``patience_s`` proves that no answer comes.
                if last:
                    waited_s = time.monotonic() - began
                    raise DeadlineExceeded(f"waited {waited_s:.1f} s for {self._address}", waited_s=waited_s)
        finally:
            for attempt in attempts:
                attempt.answer.cancel()

    def close(self) -> None:
        """Ends the call under way, and makes every later call fail."""
        with self._lock:
            self._closed.set()
        self._keep()

    def _send(self, request: Any, patience_s: float, news: threading.Event, *, fresh: bool) -> _Attempt:
        """Sends a request over a new connection if ``fresh``, else over the newest open connection."""
        with self._lock:
            if self._closed.is_set():
                raise PeerFailure(f"the line to {self._address} is closed")
            if fresh or not self._channels:
                self._channels.append(rpc.connect(self._address, secret=self._secret, shared=False))
            # The oldest connections are closed; their attempts fail as cancelled.
            gone, self._channels = self._channels[:-_MOST], self._channels[-_MOST:]
            channel = self._channels[-1]
            answer = self._method(channel).future(request, timeout=patience_s + self.again_s)
        for one in gone:
            one.close()
        answer.add_done_callback(lambda _: news.set())
        return _Attempt(channel, answer)

    def _first(self, attempts: list[_Attempt], news: threading.Event, began: float, *, until: float) -> Any | None:
        """The first answer to any attempt before the time ``until``; ``None`` if none comes, or all attempts fail."""
        while (left_s := until - time.monotonic()) > 0 and attempts:
            news.wait(left_s)
            news.clear()
            for attempt in [attempt for attempt in attempts if attempt.answer.done()]:
                attempts.remove(attempt)
                try:
                    answer = attempt.answer.result()
                except grpc.RpcError as error:
                    self._check(error, began, until=until)
                except grpc.FutureCancelledError:
                    # The connection was closed before the request was sent.
                    pass
                else:
                    self._keep(attempt.channel)
                    return answer
        return None

    def _check(self, error: Any, began: float, *, until: float) -> None:
        """Raises ``error`` if the other end sent it, or if the port has refused for more than 0.6 s; else returns, soon
        after the time ``until``."""
        # The attempt was not answered in time, or its connection was closed in favour of newer ones.
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
            return
        # The other end has answered with an error.
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise error
        # The connection has failed. A port that refuses for long enough has no process.
        within_s = max(_PAUSE_S, until - time.monotonic())
        if rpc.is_refused(self._address, within_s=within_s) and time.monotonic() - began > _REFUSED_S:
            raise error
        self._closed.wait(_PAUSE_S)

    def _keep(self, *working: rpc.Channel) -> None:
        """Closes all channels except the given ones, which work."""
        with self._lock:
            gone = [one for one in self._channels if one not in working]
            self._channels = [one for one in self._channels if one in working]
        for one in gone:
            one.close()
