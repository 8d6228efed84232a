"""The request log, as values: what was asked, the answers, and what happens to the requests."""

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

# So many ended requests are remembered with their answers; of those before them only that their ids were given.
REMEMBERED = 1000
# Of so many. It takes two megabytes; a scheduler that asks every ten seconds comes to it in three weeks.
MOST_FORGOTTEN = 200_000
_DIGEST_BYTES = 8
_LINE = 12  # characters of a digest and its line end


@dataclass(frozen=True)
class Answer:
    """The progress of a request.

    Args:
        state: The state of the request.
        reason: Why it was refused, or what came of it; empty if there is nothing to say.
        view: The version of the view at that time.
        points: The throughputs that a profile has measured so far.
    """

    state: RequestState
    reason: str = ""
    view: int = 0
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class LoggedRequest:
    """A request with its answers, and what is still to be done for it.

    Args:
        request: The request.
        first: The answer that its sender was given, and is given again.
        newest: The newest answer.
        asked_at: When it was asked, seconds of the agent's clock.
        until: When it will expire.
        external: The last request sent to the coordinator.
        survey: The progress of a profile.
    """

    request: Asked
    first: Answer
    newest: Answer
    asked_at: float
    until: float
    external: Asked | None = None
    survey: Survey | None = None


@dataclass(frozen=True)
class RequestLog:
    """All requests of a job.

    Args:
        entries: The remembered requests by id, in the order in which they were asked.
        under_way: The id of the one that is under way.
        forgotten: A line for the id of each older request, its digest: none of them is carried out again as long as
            the job lives. It is one text, since it goes to all agents with every change of the job's state.
    """

    entries: Mapping[str, LoggedRequest] = field(default_factory=dict)
    under_way: str | None = None
    forgotten: str = ""

    @property
    def external(self) -> Asked | None:
        """The last request to the coordinator for the one that is under way."""
        entry = current(self)
        return entry.external if entry else None


@dataclass(frozen=True)
class CoordinatorReplied:
    """The coordinator's answer to an external request.

    Args:
        external: The id of the request.
        refusal: Why it cannot be carried out; empty if it is done.
        result: The result of the request.
    """

    external: str
    refusal: str = ""
    result: str = ""


@dataclass(frozen=True)
class StepsMeasured:
    """Steps that the coordinator measured, while no peer was getting ready on the same hosts."""

    steps: tuple[TimedStep, ...]


# A request that was submitted, what came of the one under way, and the events of the cluster that it may wait for.
Event = Asked | CoordinatorReplied | StepsMeasured | ViewStarted | TrainingFinished | Tick


def current(log: RequestLog) -> LoggedRequest | None:
    """The request that is under way."""
    return None if log.under_way is None else log.entries.get(log.under_way)


def first_answer(log: RequestLog, request: Asked) -> Answer | None:
    """The first answer to a request of this id; a refusal if it was another request."""
    entry = log.entries.get(request.id)
    if entry is None or entry.request == request:
        # A new id, or a repetition.
        return entry.first if entry else None
    given = in_words(entry.request.what)
    return Answer("refused", f"the id {request.id!r} was given to another request, {given}; choose a new one")


def refusal_of_id(log: RequestLog, request: Asked) -> str | None:
    """Why a request of this id is neither new nor a repetition of one that is remembered; ``None`` if it is."""
    if request.id in log.entries:
        # A repetition: it is given its first answer again.
        return None
    if _digest(request.id) in log.forgotten:
        # Its answer is forgotten, but not that it was given: it is not carried out again.
        return f"the id {request.id!r} was given to a request of this job that ended long ago; choose a new one"
    count = len(log.forgotten) // _LINE
    # The text of forgotten ids is full: another id may be a repetition of one that is not in it.
    if count >= MOST_FORGOTTEN and not isinstance(request.what, StopTraining):
        return (
            f"this job has answered {count + len(log.entries)} requests and cannot tell any more "
            "whether an id is new; it takes only stop: go on from a checkpoint in a new job"
        )
    return None


def with_entry(log: RequestLog, entry: LoggedRequest) -> RequestLog:
    """The log with this entry; of the oldest entries that are not under way only the ids are kept."""
    entries, forgotten = {**log.entries, entry.request.id: entry}, log.forgotten
    spare = [name for name in entries if name not in (log.under_way, entry.request.id)]
    for old in spare[: max(0, len(entries) - REMEMBERED)]:
        del entries[old]
        forgotten += _digest(old)
    return replace(log, entries=entries, forgotten=forgotten)


def _digest(name: str) -> str:
    """The line of an id. All lines have one length, so that a line is found only where one begins."""
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()
    return base64.b64encode(digest).decode().rstrip("=") + "\n"
