"""The gRPC face of a job for those who steer it: calls become events of the agent's queue, which answers them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc

from kungfu.errors import UsageError
from kungfu.runtime.core.requests import JobRequest
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.messages_pb2_grpc import JobServiceServicer
from kungfu.runtime.job_api.convert import from_progress, from_status, to_request

__all__ = ["JobService", "ProgressQuery", "Query", "StatusQuery"]

# The agent answers between two events, none of which takes long; only one that is ending its job does not.
_ANSWER_S = 4.0


@dataclass(frozen=True)
class StatusQuery:
    """How is the job?"""


@dataclass(frozen=True)
class ProgressQuery:
    """How far is the request of this id?"""

    id: str


@dataclass(frozen=True)
class Query:
    """What somebody wants to know, or a request to take in; ``reply`` takes the answer, ``None`` if there is none."""

    subject: StatusQuery | ProgressQuery | JobRequest
    reply: Future[Any] = field(default_factory=Future)


class JobService(JobServiceServicer):  # type: ignore[misc]  # generated without types
    """What a scheduler or a person may ask; ``put`` takes the questions."""

    def __init__(self, put: Callable[[Query], None]) -> None:
        self._put = put

    def Status(self, request: pb.Inquiry, context: Any) -> pb.JobStatus:  # noqa: N802 - gRPC's name
        return from_status(self._answered(StatusQuery(), context))

    def Ask(self, request: pb.Request, context: Any) -> pb.Answer:  # noqa: N802 - gRPC's name
        try:
            wanted = to_request(request)
        except UsageError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return from_progress(self._answered(wanted, context))

    def Look(self, request: pb.RequestId, context: Any) -> pb.Answer:  # noqa: N802 - gRPC's name
        found = self._answered(ProgressQuery(request.id), context)
        if found is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"this job has taken no request {request.id!r}")
        return from_progress(found)

    def _answered(self, subject: StatusQuery | ProgressQuery | JobRequest, context: Any) -> Any:
        query = Query(subject)
        self._put(query)
        try:
            return query.reply.result(timeout=_ANSWER_S)
        except TimeoutError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the job is about to end and takes no more requests")
