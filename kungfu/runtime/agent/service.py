"""The gRPC face of the head to peers: their calls become events of its queue, their reports are written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc

from kungfu.runtime.agent.record.recorder import Recorder
from kungfu.runtime.core import cluster as decided
from kungfu.runtime.core.identity import Identity
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import to_exit, to_peer, to_report, to_view
from kungfu.runtime.ipc.messages_pb2_grpc import AgentServiceServicer

__all__ = ["AgentService"]


class AgentService(AgentServiceServicer):  # type: ignore[misc]  # generated without types
    """What peers may tell the agent that decides; ``put`` takes events of ``cluster``.

    ``noted`` gives back control when the events that were put before have been seen to, and whether they were: what was
    answered is known to all agents, and a call without an answer is made again, to the next head.
    """

    def __init__(self, put: Callable[[Any], None], recorder: Recorder, *, noted: Callable[[], bool]) -> None:
        self._put, self._recorder, self._noted = put, recorder, noted

    def Attached(self, request: pb.Hello, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        return self._see_to(decided.PeerProgressed(to_peer(request.peer), ready=False), context)

    def Ready(self, request: pb.Hello, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        identity = Identity(request.program, request.machine)
        return self._see_to(decided.PeerProgressed(to_peer(request.peer), ready=True, identity=identity), context)

    def Prepare(self, request: pb.Resize, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        host = request.host if request.HasField("host") else None
        return self._see_to(decided.SizeWanted(request.size, host, tuple(request.leaving)), context)

    def InForce(self, request: pb.ViewInfo, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        return self._see_to(decided.ViewStarted(to_view(request)), context)

    def Report(self, request: pb.Records, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(self._recorder.take(request))
        return pb.Ack()

    def Lost(self, request: pb.Loss, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        return self._see_to(decided.PeersLost(request.peer, to_report(request)), context)

    def Notify(self, request: pb.Notice, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        return self._see_to(decided.PeerNoticed(request.peer), context)

    def Exiting(self, request: pb.ProgramExit, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        return self._see_to(decided.ProgramExiting(request.peer, to_exit(request)), context)

    def Finish(self, request: pb.Finished, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        fields = {"event": "finished", "peer": request.peer, "leaving": request.leaving, **json.loads(request.summary)}
        self._recorder.event(fields, told=True)
        return self._see_to(decided.TrainingFinished(request.peer, request.leaving), context)

    def _see_to(self, event: decided.Event, context: Any) -> pb.Ack:
        self._put(event)
        if not self._noted():
            context.abort(grpc.StatusCode.UNAVAILABLE, "this host does not lead the job any more")
        return pb.Ack()
