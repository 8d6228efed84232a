"""A call that outlives its connection.

TCP repeats what was sent while a link was down after ever longer pauses, so it may arrive as long after the link is
back as the link was down. A fresh connection has no such pause. So a call that gets no answer is repeated over a fresh
connection beside the first one, and the answer that comes first counts; the other end must recognize a request that it
receives twice.
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

_MOST = 3  # connections at a time
# For so long a port that refuses does not count as an ended process: a connection may break without one.
_REFUSED_S = 0.6
_PAUSE_S = 0.1  # after a failed attempt


@dataclass(frozen=True)
class _Attempt:
    """A request that was sent, the channel that it went over, and its answer to come."""

    channel: rpc.Channel
    answer: Any


class Persistent:
    """Calls one method of the service at an address, over fresh connections where nothing is answered.

    Args:
        address: ``HOST:PORT`` of the service.
        secret: The job's.
        method: Finds the method, given a channel.
        again_s: Seconds without an answer after which a request is repeated over a fresh connection.
    """

    def __init__(self, address: str, *, secret: str, method: Callable[[Any], rpc.Method], again_s: float) -> None:
        self._address, self._secret, self._method, self.again_s = address, secret, method, again_s
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._channels: list[rpc.Channel] = []

    def ask(self, request: Callable[[], Any], *, patience_s: float) -> Any:
        """Sends a request until it is answered.

        Args:
            request: Makes the message; it is called for each attempt.
            patience_s: Seconds after which no attempt is made but a last one.

        Returns:
            The first answer.

        Raises:
            DeadlineExceeded: No attempt was answered, the last one included.
            PeerFailure: This object was closed.
            grpc.RpcError: The other end answers with an error, or its port refuses for more than 0.6 s.
        """
        began, attempts = time.monotonic(), list[_Attempt]()
        news = threading.Event()
        try:
            while True:
                last = time.monotonic() - began > patience_s
                attempts.append(self._send(request(), patience_s, news, fresh=bool(attempts)))
                answer = self._first(attempts, news, began, until=time.monotonic() + self.again_s)
                if answer is not None:
                    return answer
                # This thread may have stood still, and the answer with it: only an attempt after that counts.
                if last:
                    waited_s = time.monotonic() - began
                    raise DeadlineExceeded(f"waited {waited_s:.1f} s for {self._address}", waited_s=waited_s)
        finally:
            for attempt in attempts:
                attempt.answer.cancel()

    def close(self) -> None:
        """Ends the call under way, and every later one."""
        with self._lock:
            self._closed.set()
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _send(self, request: Any, patience_s: float, news: threading.Event, *, fresh: bool) -> _Attempt:
        """Sends a request: over the connection that answered last, unless it is to be a ``fresh`` one."""
        with self._lock:
            if self._closed.is_set():
                raise PeerFailure(f"the line to {self._address} is closed")
            if fresh or not self._channels:
                self._channels.append(rpc.connect(self._address, secret=self._secret, shared=False))
            # The oldest connections are given up; their attempts fail as cancelled.
            gone, self._channels = self._channels[:-_MOST], self._channels[-_MOST:]
            channel = self._channels[-1]
            answer = self._method(channel).future(request, timeout=patience_s + self.again_s)
        for one in gone:
            one.close()
        answer.add_done_callback(lambda _: news.set())
        return _Attempt(channel, answer)

    def _first(self, attempts: list[_Attempt], news: threading.Event, began: float, *, until: float) -> Any | None:
        """The first answer that comes until then; ``None`` if none does, or all attempts have failed."""
        while (left_s := until - time.monotonic()) > 0 and attempts:
            news.wait(left_s)
            news.clear()
            for attempt in [attempt for attempt in attempts if attempt.answer.done()]:
                attempts.remove(attempt)
                try:
                    answer = attempt.answer.result()
                except grpc.RpcError as error:
                    self._check(error, began)
                except grpc.FutureCancelledError:
                    # Its connection was given up before the request was sent.
                    pass
                else:
                    self._keep(attempt.channel)
                    return answer
        return None

    def _check(self, error: Any, began: float) -> None:
        """Raises an error that the other end answered with, and one of a port that has refused for long enough."""
        # The attempt was not answered in time, or its connection was given up for newer ones.
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
            return
        # The other end has answered with an error.
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise error
        # The connection has failed: for long enough that it is no hiccup, if nobody listens there.
        if rpc.is_refused(self._address) and time.monotonic() - began > _REFUSED_S:
            raise error
        self._closed.wait(_PAUSE_S)

    def _keep(self, channel: rpc.Channel) -> None:
        """Closes all other channels: this one works."""
        with self._lock:
            gone = [one for one in self._channels if one is not channel]
            self._channels = [one for one in self._channels if one is channel]
        for one in gone:
            one.close()
