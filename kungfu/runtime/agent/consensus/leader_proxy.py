"""Forwards calls to the leader: any agent may be called, and the leader answers, on this host or on another host."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from kungfu.runtime.agent.consensus.state import ConsensusState
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.settings import Settings

_RETRY_EVERY_S = 0.1
_LOOK_S = 0.1
_REPORT_DEADLINE_S = 5.0
# The status of a failed call to an agent that does not lead, or no longer leads.
_NOT_THE_LEADER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.CANCELLED)


class LeaderClient:
    """Calls the leader on another host; an unanswered call is repeated to the next leader."""

    def __init__(self, consensus: ConsensusState, settings: Settings) -> None:
        self._consensus = consensus
        self._channels = rpc.ChannelPool(secret=settings.secret)

    def call(self, stub: Callable[[Any], Any], method: str, request: Any, *, deadline_s: float) -> Any:
        """Calls the leader and returns its answer.

        Args:
            stub: The generated class of the service.
            method: The name of the method.
            request: The message to send.
            deadline_s: Seconds for all attempts together.

        Raises:
            grpc.RpcError: The leader answered with an error, or did not answer in time.
            _NoLeaderError: There is no leader, or this host is the leader.
        """
        until = time.monotonic() + deadline_s
        while True:
            leader = self._consensus.await_leader(max(0.0, until - time.monotonic()))
            try:
                # No leader was elected in time, or this host is the leader now.
                if leader is None or leader == self._consensus.host:
                    raise _NoLeaderError
                # The list with the leader's address is on its way.
                if (host := self._consensus.hosts.get(leader)) is None:
                    raise _NoLeaderError
                ask = getattr(stub(self._channels.to(host.address)), method)
                return self._answered(ask.future(request, timeout=max(0.1, until - time.monotonic())), leader)
            except grpc.RpcError as error:
                # The leader answered with an error, or there is no time for another attempt.
                if error.code() not in _NOT_THE_LEADER or time.monotonic() > until:
                    raise
            except _NoLeaderError:
                # Only the loss of the leader during the call is a reason to repeat the call.
                if leader is None or leader == self._consensus.host or time.monotonic() > until:
                    raise
            time.sleep(_RETRY_EVERY_S)

    def _answered(self, answer: Any, leader: int) -> Any:
        """Returns the leader's answer once it arrives; raises ``_NoLeaderError`` if ``leader`` no longer leads."""
        while True:
            try:
                return answer.result(timeout=_LOOK_S)
            except grpc.FutureTimeoutError:
                # The leader was lost or replaced before it answered.
                if self._consensus.leader != leader:
                    answer.cancel()
                    raise _NoLeaderError from None

    def report(self, event: pb.HostEvent) -> bool:
        """Reports an event of this host to the leader; returns True if the leader has confirmed the event."""
        try:
            self.call(HostServiceStub, "ReportHostEvent", event, deadline_s=_REPORT_DEADLINE_S)
        except _NoLeaderError:
            return False
        # The caller repeats the report; the pause prevents a busy loop under a lasting error.
        except grpc.RpcError:
            time.sleep(_RETRY_EVERY_S)
            return False
        return True


class _NoLeaderError(Exception):
    """No host leads the job at present, or this host leads it."""


class LeaderProxy:
    """A gRPC servicer that passes its calls to the leader.

    Args:
        local: The servicer that answers while this agent leads.
        stub: The generated class that calls the same service on another host.
        client: Calls the leader on another host.
        consensus: The consensus state of this agent, which names the leader.
        deadline_s: The seconds for which a call waits for a leader and the leader's answer.
    """

    def __init__(
        self, local: Any, stub: Callable[[Any], Any], client: LeaderClient, consensus: ConsensusState, *,
        deadline_s: float,
    ) -> None:  # fmt: skip
        self._local, self._stub, self._client, self._consensus = local, stub, client, consensus
        self._deadline_s = deadline_s

    def __getattr__(self, method: str) -> Callable[[Any, Any], Any]:
        return partial(self._answer, method)

    def _answer(self, method: str, request: Any, context: Any) -> Any:
        until = time.monotonic() + self._deadline_s
        while True:
            # This agent leads, or was elected during the wait.
            if self._consensus.await_leader(max(0.0, until - time.monotonic())) == self._consensus.host:
                return getattr(self._local, method)(request, context)
            try:
                left_s = max(0.1, until - time.monotonic())
                return self._client.call(self._stub, method, request, deadline_s=left_s)
            # The leader answered with an error, or did not answer in time.
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            except _NoLeaderError:
                # Unless this agent was elected meanwhile, there is no leader that could answer.
                if not self._consensus.is_leader:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "no host leads the job at the moment")
