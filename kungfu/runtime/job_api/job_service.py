"""The gRPC service for people and schedulers: each call queues a query for the agent and waits for the reply.

The module also converts requests, answers and statuses to messages and back, for the service and its clients.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from kungfu.errors import UsageError
from kungfu.runtime.core.request import AGENT, Asked, in_words
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import converters, from_asked, to_asked
from kungfu.runtime.ipc.messages_pb2_grpc import JobServiceServicer
from kungfu.runtime.job_api.request_plan import RequestPlan
from kungfu.runtime.job_api.status import JobStatus, RequestProgress

# The agent answers after the event that it handles, which is soon; an agent that ends its job does not answer.
_ANSWER_S = 4.0

from_progress, to_progress = converters(RequestProgress, pb.RequestProgress)
from_plan, to_plan = converters(RequestPlan, pb.RequestPlan)
from_status, to_status = converters(JobStatus, pb.JobStatus)


def from_request(request: Asked) -> pb.Asked:
    """The message of a request; raises ``UsageError`` if a value of the request does not fit into a message."""
    try:
        message: pb.Asked = from_asked(request)
    # A number is out of the range of its field, or is not a number.
    except (ValueError, TypeError) as error:
        raise UsageError(f"{in_words(request.what)} cannot be asked for: {error}") from error
    return message


def to_request(message: pb.Asked) -> Asked:
    """Converts a message to a request; raises ``UsageError`` if the message has no id or is of an unknown kind."""
    # A repeated request is recognized by its id: without an id a repetition would be carried out again.
    if message.id in ("", AGENT):
        raise UsageError("the request has no id; give one that no other request has")
    return replace(to_asked(message), superseded_by="")


@dataclass(frozen=True)
class StatusQuery:
    """A query for the status of the job."""


@dataclass(frozen=True)
class ProgressQuery:
    """A query for the progress of the request with this id."""

    id: str


@dataclass(frozen=True)
class PlanQuery:
    """A query for the effects that a request would have."""

    request: Asked


Subject = StatusQuery | ProgressQuery | PlanQuery | Asked


@dataclass(frozen=True)
class Query:
    """A query or a new request; ``reply`` receives the answer, or ``None`` if no answer exists."""

    subject: Subject
    reply: Future[Any] = field(default_factory=Future)


class JobService(JobServiceServicer):  # type: ignore[misc]  # generated without types
    """Answers calls of schedulers and people; ``put`` queues a query for the agent's main thread, which answers it."""

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
