"""The gRPC face of an agent: calls of peers become events of its queue, reports go to the journal."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from kungfu.runtime.agent.console import Console
from kungfu.runtime.agent.journal import Journal
from kungfu.runtime.deciding import cluster as decided
from kungfu.runtime.steering.desk import Reported
from kungfu.runtime.wire import messages_pb2 as pb
from kungfu.runtime.wire.convert import to_peer, to_report, to_view
from kungfu.runtime.wire.messages_pb2_grpc import AgentServiceServicer

__all__ = ["AgentService"]


class AgentService(AgentServiceServicer):  # type: ignore[misc]  # generated without types
    """What peers may tell their agent; ``put`` takes events of ``cluster``."""

    def __init__(self, put: Callable[[Any], None], journal: Journal, console: Console) -> None:
        self._put, self._journal, self._console = put, journal, console
        self._lock = threading.Lock()

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
        return pb.Ack()

    def Report(self, request: pb.Records, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        told: dict[str, list[dict[str, Any]]] = {"events": [], "metrics": []}
        with self._lock:
            self._journal.append("trace", [one.line for one in request.records if one.stream == "trace"])
            for record in request.records:
                if record.stream == "trace":
                    continue
                fields = json.loads(record.line)
                told[record.stream].append(fields)
                self._journal.write(record.stream, fields)
                (self._console.event if record.stream == "events" else self._console.status)(fields)
        self._put(Reported(tuple(told["events"]), tuple(told["metrics"])))
        return pb.Ack()

    def Lost(self, request: pb.Loss, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(decided.Lost(request.peer, to_report(request)))
        return pb.Ack()

    def Notify(self, request: pb.Notice, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        self._put(decided.Noticed(request.peer))
        return pb.Ack()

    def Finish(self, request: pb.Finished, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        fields = {"event": "finished", "peer": request.peer, "leaving": request.leaving, **json.loads(request.summary)}
        with self._lock:
            self._journal.write("events", fields)
            self._console.event(fields)
        self._put(decided.Finishing(request.peer, request.leaving))
        return pb.Ack()
