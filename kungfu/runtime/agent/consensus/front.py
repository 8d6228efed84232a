"""Whatever is said to an agent is answered by the head: here, or on another host."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import grpc

from kungfu.runtime.agent.consensus.allegiance import Allegiance
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.settings import Settings

__all__ = ["Away", "Front"]

_AGAIN_S = 0.1
_LOOK_S = 0.1
_TELL_S = 5.0
# What a call fails with if the one who was asked is not, or not any more, the one to ask.
_ELSEWHERE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.CANCELLED)


class Away:
    """Calls to the head on another host; a call that it does not take is made again, to the one that takes over."""

    def __init__(self, allegiance: Allegiance, hosts: Mapping[int, Host], settings: Settings) -> None:
        self._allegiance, self._hosts = allegiance, hosts
        self._lines = rpc.Lines(secret=settings.secret)

    def call(self, stub: Callable[[Any], Any], method: str, request: Any, *, deadline_s: float) -> Any:
        """The answer of the head. Raises ``grpc.RpcError`` that is the head's own, or says that none answered."""
        until = time.monotonic() + deadline_s
        while True:
            head = self._allegiance.await_head(max(0.0, until - time.monotonic()))
            try:
                if head is None or head == self._allegiance.place:
                    raise _NoHeadError
                ask = getattr(stub(self._lines.to(self._hosts[head].address)), method)
                return self._answered(ask.future(request, timeout=max(0.1, until - time.monotonic())), head)
            except grpc.RpcError as error:
                if error.code() not in _ELSEWHERE or time.monotonic() > until:
                    raise
            except _NoHeadError:
                if head is None or head == self._allegiance.place or time.monotonic() > until:
                    raise
            time.sleep(_AGAIN_S)

    def _answered(self, answer: Any, head: int) -> Any:
        """Waits no longer for a head that is lost."""
        while True:
            try:
                return answer.result(timeout=_LOOK_S)
            except grpc.FutureTimeoutError:
                if self._allegiance.head != head:
                    answer.cancel()
                    raise _NoHeadError from None

    def tell(self, happening: pb.Happening) -> bool:
        """Tells the head what happened on this host; whether it took it."""
        try:
            self.call(HostServiceStub, "Happened", happening, deadline_s=_TELL_S)
        except (grpc.RpcError, _NoHeadError):
            return False
        return True


class _NoHeadError(Exception):
    """Nobody leads the job at the moment, or this host does."""


class Front:
    """A gRPC service in front of ``here``, its methods answered by the head.

    Its name for ``stub`` is that of the generated class for the same service.
    """

    def __init__(
        self, here: Any, stub: Callable[[Any], Any], away: Away, allegiance: Allegiance, *, deadline_s: float
    ) -> None:
        self._here, self._stub, self._away, self._allegiance = here, stub, away, allegiance
        self._deadline_s = deadline_s

    def __getattr__(self, method: str) -> Callable[[Any, Any], Any]:
        return partial(self._answer, method)

    def _answer(self, method: str, request: Any, context: Any) -> Any:
        until = time.monotonic() + self._deadline_s
        while True:
            if self._allegiance.await_head(max(0.0, until - time.monotonic())) == self._allegiance.place:
                return getattr(self._here, method)(request, context)
            try:
                left_s = max(0.1, until - time.monotonic())
                return self._away.call(self._stub, method, request, deadline_s=left_s)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            except _NoHeadError:
                if not self._allegiance.leads:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "no host leads the job at the moment")
