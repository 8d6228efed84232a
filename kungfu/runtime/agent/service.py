"""The gRPC face of the head to peers: their calls become events of its queue, their reports are written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kungfu.runtime.agent.record.recorder import Recorder
from kungfu.runtime.deciding import cluster as decided
from kungfu.runtime.wire import messages_pb2 as pb
from kungfu.runtime.wire.convert import to_peer, to_report, to_view
from kungfu.runtime.wire.messages_pb2_grpc import AgentServiceServicer

__all__ = ["AgentService"]


class AgentService(AgentServiceServicer):  # type: ignore[misc]  # generated without types
    """What peers may tell the agent that decides; ``put`` takes events of ``cluster``.

    ``noted`` gives back control when the events that were put before have been seen to: whoever hears that a view is in
    force must not know more than the agents do.
    """

    def __init__(self, put: Callable[[Any], None], recorder: Recorder, *, noted: Callable[[], None]) -> None:
        self._put, self._recorder, self._noted = put, recorder, noted

    def Attached(self, request: pb.Hello, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(decided.Seen(to_peer(request.peer), ready=False))
        return pb.Ack()

    def Ready(self, request: pb.Hello, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(decided.Seen(to_peer(request.peer), ready=True))
        return pb.Ack()

    def Prepare(self, request: pb.Resize, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(decided.Wanted(request.size, request.host if request.HasField("host") else None))
        return pb.Ack()

    def InForce(self, request: pb.ViewInfo, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(decided.InForce(to_view(request)))
        self._noted()
        return pb.Ack()

    def Report(self, request: pb.Records, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(self._recorder.take(request))
        return pb.Ack()

    def Lost(self, request: pb.Loss, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(decided.Lost(request.peer, to_report(request)))
        return pb.Ack()

    def Notify(self, request: pb.Notice, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(decided.Noticed(request.peer))
        return pb.Ack()

    def Finish(self, request: pb.Finished, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        fields = {"event": "finished", "peer": request.peer, "leaving": request.leaving, **json.loads(request.summary)}
        self._recorder.event(fields, told=True)
        self._put(decided.Finishing(request.peer, request.leaving))
        return pb.Ack()
