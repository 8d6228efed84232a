"""The gRPC service for people and schedulers: each call queues a query for the agent and waits for the reply."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc

from kungfu.runtime.core.request import Asked
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import JobServiceServicer
from kungfu.runtime.job_api.convert import from_plan, from_progress, from_status, to_request

# The agent answers between two events, which are short; an agent that ends its job does not answer.
_ANSWER_S = 4.0


@dataclass(frozen=True)
class StatusQuery:
    """Asks for the status of the job."""


@dataclass(frozen=True)
class ProgressQuery:
    """Asks for the progress of the request with this id."""

    id: str


@dataclass(frozen=True)
class PlanQuery:
    """Asks for the effects that a request would have."""

    request: Asked


Subject = StatusQuery | ProgressQuery | PlanQuery | Asked


@dataclass(frozen=True)
class Query:
    """A query or a new request; ``reply`` receives the answer, ``None`` if there is none."""

    subject: Subject
    reply: Future[Any] = field(default_factory=Future)


class JobService(JobServiceServicer):  # type: ignore[misc]  # generated without types
    """Answers the calls of schedulers and people.

    Args:
        put: Queues a query for the agent's main thread, which answers it.
    """

    def __init__(self, put: Callable[[Query], None]) -> None:
        self._put = put

    def GetStatus(self, request: pb.Empty, context: Any) -> pb.JobStatus:  # noqa: N802 - gRPC's name
        return from_status(self._answered(StatusQuery(), context))

    @rpc.receives(to_request)
    def SubmitRequest(self, request: Asked, context: Any) -> pb.RequestProgress:  # noqa: N802 - gRPC's name
        return from_progress(self._answered(request, context))

    def GetProgress(self, request: pb.RequestId, context: Any) -> pb.RequestProgress:  # noqa: N802 - gRPC's name
        found = self._answered(ProgressQuery(request.id), context)
        if found is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"this job has taken no request {request.id!r}")
        return from_progress(found)

    @rpc.receives(to_request)
    def PlanRequest(self, request: Asked, context: Any) -> pb.RequestPlan:  # noqa: N802 - gRPC's name
        return from_plan(self._answered(PlanQuery(request), context))

    def _answered(self, subject: Subject, context: Any) -> Any:
        query = Query(subject)
        self._put(query)
        try:
            return query.reply.result(timeout=_ANSWER_S)
        # The main thread has left its loop: this agent is ending.
        except TimeoutError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the job is about to end and takes no more requests")
