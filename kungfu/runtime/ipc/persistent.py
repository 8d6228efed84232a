"""A call that outlives its connection.

What is sent while a link is down TCP sends again later and later: up to as long after the link is back as it was down.
A fresh connection knows nothing of that. So who gets no answer asks again beside, over another one, and takes the
answer that comes first; the other end must take a request that it hears twice for one.
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

__all__ = ["Persistent"]

_MOST = 3  # connections at a time
# A port that refuses is asked again for so long: a connection may break without anybody's end.
_REFUSED_S = 0.6
_PAUSE_S = 0.1


@dataclass(frozen=True)
class _Asked:
    """A request on its way."""

    channel: rpc.Channel
    answer: Any


class Persistent:
    """Asks the service at ``address``, again over a fresh connection whenever nothing has come for ``again_s``.

    ``method`` finds what is asked, by its stub.
    """

    def __init__(self, address: str, *, secret: str, method: Callable[[Any], rpc.Method], again_s: float) -> None:
        self._address, self._secret, self._method, self.again_s = address, secret, method, again_s
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._channels: list[rpc.Channel] = []

    def ask(self, request: Callable[[], Any], *, patience_s: float) -> Any:
        """The first answer to ``request``, which is called each time that it is sent.

        Raises ``DeadlineExceeded`` when none came in ``patience_s`` and to one more try after it, ``PeerFailure`` after
        ``close``, and ``grpc.RpcError`` for an error that the other end answers and a port that refuses.
        """
        began, asked = time.monotonic(), list[_Asked]()
        news = threading.Event()
        try:
            while True:
                last = time.monotonic() - began > patience_s
                asked.append(self._asked(request(), patience_s, news, fresh=bool(asked)))
                answer = self._first(asked, news, began, until=time.monotonic() + self.again_s)
                if answer is not None:
                    return answer
                if last:
                    waited_s = time.monotonic() - began
                    raise DeadlineExceeded(f"waited {waited_s:.1f} s for {self._address}", waited_s=waited_s)
        finally:
            for one in asked:
                one.answer.cancel()

    def close(self) -> None:
        """Ends the call under way, and takes no others."""
        with self._lock:
            self._closed.set()
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _asked(self, request: Any, patience_s: float, news: threading.Event, *, fresh: bool) -> _Asked:
        with self._lock:
            if self._closed.is_set():
                raise PeerFailure(f"the line to {self._address} is closed")
            if fresh or not self._channels:
                self._channels.append(rpc.connect(self._address, secret=self._secret, shared=False))
            gone, self._channels = self._channels[:-_MOST], self._channels[-_MOST:]
            channel = self._channels[-1]
            answer = self._method(channel).future(request, timeout=patience_s + self.again_s)
        for one in gone:
            one.close()
        answer.add_done_callback(lambda _: news.set())
        return _Asked(channel, answer)

    def _first(self, asked: list[_Asked], news: threading.Event, began: float, *, until: float) -> Any | None:
        """The first answer that comes until then; ``None`` if none does, or a connection broke."""
        while (left_s := until - time.monotonic()) > 0 and asked:
            news.wait(left_s)
            news.clear()
            for one in [one for one in asked if one.answer.done()]:
                asked.remove(one)
                try:
                    answer = one.answer.result()
                except grpc.RpcError as error:
                    self._check(error, began)
                except grpc.FutureCancelledError:
                    pass  # the same, before it was sent
                else:
                    self._keep(one.channel)
                    return answer
        return None

    def _check(self, error: Any, began: float) -> None:
        """Raises an error that is an answer, or one that has lasted."""
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
            return  # its time is up, or its connection was one too many
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise error
        if rpc.is_refused(self._address) and time.monotonic() - began > _REFUSED_S:
            raise error
        self._closed.wait(_PAUSE_S)

    def _keep(self, channel: rpc.Channel) -> None:
        """The others are not needed any more."""
        with self._lock:
            gone = [one for one in self._channels if one is not channel]
            self._channels = [one for one in self._channels if one is channel]
        for one in gone:
            one.close()
