"""The request log, as values: the requests, their answers, and the events that concern them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kungfu.runtime.core.cluster.events import Tick, TrainingFinished, ViewStarted
from kungfu.runtime.core.request import Asked, StopTraining, in_words
from kungfu.runtime.core.requests.profiling import Point, Survey, TimedStep

RequestState = Literal["accepted", "carried out", "refused", "expired"]

# The number of requests that are remembered with their answers; of older requests only the ids are remembered.
REMEMBERED = 1000
# The maximum number of ids of older requests: two megabytes, reached after three weeks of a request every ten seconds.
MOST_FORGOTTEN = 200_000
_DIGEST_BYTES = 8
_LINE = 12  # characters of a digest and its line end


@dataclass(frozen=True)
class Answer:
    """The progress of a request."""

    state: RequestState
    reason: str = ""  # the reason for a refusal, or the outcome; empty if there is none
    view: int = 0  # the version of the view at the time of the answer
    points: tuple[Point, ...] = ()  # the throughputs that a profile has measured so far


@dataclass(frozen=True)
class LoggedRequest:
    """A request with its answers and its remaining work."""

    request: Asked
    first: Answer  # the first answer to the sender; a repeated request receives it again
    newest: Answer
    asked_at: float  # the time of the request, in seconds of the agent's clock
    until: float  # the time at which the request expires
    external: Asked | None = None  # the last request sent to the coordinator
    survey: Survey | None = None


@dataclass(frozen=True)
class RequestLog:
    """All requests of a job."""

    # The remembered requests by id, in the order of their arrival.
    entries: Mapping[str, LoggedRequest] = field(default_factory=dict)
    under_way: str | None = None  # the id of the request under way
    # A line with the digest of the id of each older request, so that none is carried out again during the job. It is
    # one text, since it is sent to all agents with every change of the job's state.
    forgotten: str = ""

    @property
    def external(self) -> Asked | None:
        """The last request that was sent to the coordinator for the request under way."""
        entry = current(self)
        return entry.external if entry else None


@dataclass(frozen=True)
class CoordinatorReplied:
    """The coordinator's answer to an external request."""

    external: str  # the id of the request
    refusal: str = ""  # the reason why the request cannot be carried out; empty if it was carried out
    result: str = ""  # the result of the request


@dataclass(frozen=True)
class StepsMeasured:
    """The steps that the coordinator measured while no peer was getting ready on the same hosts."""

    steps: tuple[TimedStep, ...]


# A submitted request, news of the request under way, and the events of the cluster for which it may wait.
Event = Asked | CoordinatorReplied | StepsMeasured | ViewStarted | TrainingFinished | Tick


def current(log: RequestLog) -> LoggedRequest | None:
    """The request under way; ``None`` if there is none."""
    return None if log.under_way is None else log.entries.get(log.under_way)


def first_answer(log: RequestLog, request: Asked) -> Answer | None:
    """The first answer to a request with this id; a refusal if the id belongs to a different request."""
    entry = log.entries.get(request.id)
    if entry is None or entry.request == request:
        # The id is new, or the request is a repetition.
        return entry.first if entry else None
    given = in_words(entry.request.what)
    return Answer("refused", f"the id {request.id!r} was given to another request, {given}; choose a new one")


def refusal_of_id(log: RequestLog, request: Asked) -> str | None:
    """The reason why this id cannot be used; ``None`` if the id is new or belongs to a remembered request."""
    if request.id in log.entries:
        # A repetition receives its first answer again.
        return None
    if _digest(request.id) in log.forgotten:
        # The answer is forgotten, but not the id: the request is not carried out again.
        return f"the id {request.id!r} was given to a request of this job that ended long ago; choose a new one"
    count = len(log.forgotten) // _LINE
    # If the text of forgotten ids is full, an unknown id may be a repetition.
    if count >= MOST_FORGOTTEN and not isinstance(request.what, StopTraining):
        return (
            f"this job has answered {count + len(log.entries)} requests and cannot tell any more "
            "whether an id is new; it takes only stop: go on from a checkpoint in a new job"
        )
    return None


def with_entry(log: RequestLog, entry: LoggedRequest) -> RequestLog:
    """The log with this entry; the oldest entries beyond ``REMEMBERED`` are reduced to their ids."""
    entries, forgotten = {**log.entries, entry.request.id: entry}, log.forgotten
    spare = [name for name in entries if name not in (log.under_way, entry.request.id)]
    for old in spare[: max(0, len(entries) - REMEMBERED)]:
        del entries[old]
        forgotten += _digest(old)
    return replace(log, entries=entries, forgotten=forgotten)


def _digest(name: str) -> str:
    """The line of an id. All lines have the same length, so that a search matches only at the beginning of a line."""
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()
    return base64.b64encode(digest).decode().rstrip("=") + "\n"
