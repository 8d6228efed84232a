"""Converts requests, answers and statuses to messages, and back."""

from __future__ import annotations

from dataclasses import replace

from kungfu.errors import UsageError
from kungfu.runtime.core.request import AGENT, Asked, in_words
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import converters, from_asked, to_asked
from kungfu.runtime.job_api.request_plan import RequestPlan
from kungfu.runtime.job_api.status import JobStatus, RequestProgress


def from_request(request: Asked) -> pb.Asked:
    """The message of a request; raises ``UsageError`` if a message cannot represent one of its values."""
    try:
        message: pb.Asked = from_asked(request)
    # A number is out of the range of its field, or is not a number.
    except (ValueError, TypeError) as error:
        raise UsageError(f"{in_words(request.what)} cannot be asked for: {error}") from error
    return message


def to_request(message: pb.Asked) -> Asked:
    """The request of a message; raises ``UsageError`` if the message has no id or an unknown kind."""
    # A repeated request is recognized by its id: without an id a repetition would be carried out again.
    if message.id in ("", AGENT):
        raise UsageError("the request has no id; give one that no other request has")
    return replace(to_asked(message), superseded_by="")


from_progress, to_progress = converters(RequestProgress, pb.RequestProgress)
from_plan, to_plan = converters(RequestPlan, pb.RequestPlan)
from_status, to_status = converters(JobStatus, pb.JobStatus)
