"""The client of a job's service, for the commands and for schedulers in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure, UsageError
from kungfu.runtime.core.request import Asked
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import JobServiceStub
from kungfu.runtime.job_api.job_file import ELSEWHERE, JobFile, read_job_file, state_of
from kungfu.runtime.job_api.job_service import from_request, to_plan, to_progress, to_status
from kungfu.runtime.job_api.request_plan import RequestPlan
from kungfu.runtime.job_api.status import JobStatus, RequestProgress

DEADLINE_S = 5.0


class JobOver(UsageError):  # noqa: N818 - the end of a job is no error
    """The job has ended; ``code`` is the exit code of its kungfu-run, ``None`` if unknown."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class JobClient:
    """Calls one job; every call returns or raises within `DEADLINE_S` seconds.

    Args:
        folder: The folder of the job; its job file records how the job ended.

    Raises:
        JobOver: The job has ended.
        UsageError: The agent refuses the secret or the request.
        PeerFailure: The job's agent is gone.
        DeadlineExceeded: The job's agent does not answer.
    """

    def __init__(self, folder: Path, channel: Any) -> None:
        self._folder, self._stub = folder, JobServiceStub(channel)

    def status(self) -> JobStatus:
        """The status of the job."""
        return to_status(self._call(self._stub.GetStatus, pb.Empty()))

    def submit(self, request: Asked) -> RequestProgress:
        """Submits a request and returns its first answer, even if a request with this id was submitted before."""
        return to_progress(self._call(self._stub.SubmitRequest, from_request(request)))

    def plan(self, request: Asked) -> RequestPlan:
        """The effects that a request would have if it were submitted now."""
        return to_plan(self._call(self._stub.PlanRequest, from_request(request)))

    def progress(self, name: str) -> RequestProgress:
        """The progress of the request with the id ``name``."""
        return to_progress(self._call(self._stub.GetProgress, pb.RequestId(id=name)))

    def _call(self, method: Any, message: Any) -> Any:
        try:
            return rpc.call(method, message, deadline_s=DEADLINE_S, what="the agent")
        except KungfuError as error:
            raise _explained(error.__cause__, self._folder) from error


@contextmanager
def connected(folder: Path) -> Iterator[JobClient]:
    """Connects a client to the job that writes its record to ``folder``."""
    content = read_job_file(folder)
    _check_running(folder, content)
    with rpc.connect(content.agent, secret=content.secret) as channel:
        yield JobClient(folder, channel)


def _check_running(folder: Path, content: JobFile) -> None:
    if content.ended is not None:
        raise JobOver(f"{folder}: the job is over; it ended with exit code {content.code}", content.code)
    # A job of another machine can be reached if its hosts were named.
    if state_of(content) == "over":
        raise JobOver(f"{folder}: the job is over; its kungfu-run (process {content.pid}) ended without a word", None)


def _explained(error: Any, folder: Path) -> KungfuError:
    """The error to raise for a failed call: `JobOver` if the job file shows that the job has ended."""
    content = read_job_file(folder)
    match error.code().name:
        # Another job now listens at this address, or the file is not this job's.
        case "UNAUTHENTICATED":
            return UsageError(
                f"the agent at {content.agent} does not take the secret in {folder}: it is that of another job, "
                "or the file was changed"
            )
        # The agent has answered with the fault in the request.
        case "INVALID_ARGUMENT" | "NOT_FOUND":
            return UsageError(error.details())
    # There was no answer: the job is over, or its agent has failed or is stopped.
    try:
        _check_running(folder, content)
    except JobOver as over:
        return over
    where = ELSEWHERE if state_of(content) == "unknown" else f"process {content.pid}"
    who = f"the agent of {folder} at {content.agent} ({where})"
    if error.code().name == "DEADLINE_EXCEEDED":
        return DeadlineExceeded(
            f"waited {DEADLINE_S:g} s for {who} and had no answer; is it stopped?", waited_s=DEADLINE_S
        )
    return PeerFailure(f"lost {who}: {error.details() or error.code().name}")
