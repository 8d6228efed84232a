"""The leader's gRPC service for peers: each call becomes an event in the leader's queue, and reports are recorded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import grpc

from kungfu.event_log.codec import unpack_event
from kungfu.event_log.events import FinishedEvent
from kungfu.runtime.agent.journal.recorder import HostRecorder
from kungfu.runtime.core.cluster import events as decided
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import to_report
from kungfu.runtime.ipc.messages_pb2_grpc import AgentServiceServicer

_ANSWER_S = 5.0


@dataclass(frozen=True)
class PhaseProgressAsked:
    """A peer outside the view asks which phases of the job are over."""

    peer: int
    reply: Future[pb.PhaseProgress]


class AgentService(AgentServiceServicer):  # type: ignore[misc]  # generated without types
    """Answers the calls of peers.

    Args:
        put: Queues an event (a class of ``core.cluster.events``) for the agent's main thread.
        recorder: Records the reports of peers.
        flushed: Waits until all events queued so far are handled and replicated; returns True if they are. A call is
            confirmed only when all agents know of its event; an unconfirmed call is repeated to the next leader.
    """

    def __init__(self, put: Callable[[Any], None], recorder: HostRecorder, *, flushed: Callable[[], bool]) -> None:
        self._put, self._recorder, self._flushed = put, recorder, flushed

    @rpc.receives(to_report)
    def ReportEvent(self, event: decided.ReportedEvent, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        return self._confirm(event, context)

    def ReportRecords(self, request: pb.Records, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(self._recorder.receive(request))
        return pb.Ack()

    def ReportFinished(self, request: pb.TrainingFinished, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        finished = unpack_event(request.event)
        assert isinstance(finished, FinishedEvent)
        self._recorder.finished(finished)
        return self._confirm(decided.TrainingFinished(finished.peer, finished.leaving, finished.phase), context)

    def GetPhaseProgress(self, request: pb.PeerInfo, context: Any) -> pb.PhaseProgress:  # noqa: N802 - gRPC's name
        asked: Future[pb.PhaseProgress] = Future()
        self._put(PhaseProgressAsked(request.id, asked))
        try:
            return asked.result(timeout=_ANSWER_S)
        # This agent is ending, or is blocked: the peer asks again.
        except TimeoutError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "this host does not lead the job any more")
            raise

    def _confirm(self, event: decided.Event, context: Any) -> pb.Ack:
        self._put(event)
        # This agent is ending, or no longer leads: the peer calls the next leader.
        if not self._flushed():
            context.abort(grpc.StatusCode.UNAVAILABLE, "this host does not lead the job any more")
        return pb.Ack()
