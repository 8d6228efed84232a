"""The ledger of requests, as values: what was asked, the answers, and what happens to them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kungfu.runtime.core.barrier_requests import ExternalRequest
from kungfu.runtime.core.requests.profiling import Point, Step, Survey
from kungfu.runtime.core.requests.request import Request, Stop, in_words

__all__ = [
    "Answer",
    "Asked",
    "Entry",
    "Event",
    "Heard",
    "Ledger",
    "Measured",
    "Over",
    "State",
    "Tick",
    "Viewed",
    "current",
    "first_answer",
    "noted",
    "refusal_of_id",
]

State = Literal["accepted", "carried out", "refused", "expired"]

# So many ended requests are remembered with their answers; of those before them only that their ids were given.
REMEMBERED = 1000
# Of so many. It takes two megabytes; a scheduler that asks every ten seconds comes to it in three weeks.
MOST_FORGOTTEN = 200_000
_DIGEST_BYTES = 8
_LINE = 12  # characters of a digest and its line end


@dataclass(frozen=True)
class Answer:
    """How far a request is: ``reason`` says why it was refused or what came of it, in the view of version ``view``."""

    state: State
    reason: str = ""
    view: int = 0
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A request with its first and newest answer, when it was asked and will expire, and what is still to be done."""

    request: Request
    first: Answer
    newest: Answer
    asked_at: float
    until: float
    demand: ExternalRequest | None = None
    survey: Survey | None = None


@dataclass(frozen=True)
class Ledger:
    """All requests by id, in the order in which they were asked, and which of them is under way.

    ``forgotten`` has a line for the id of each older one, its digest: none of them is carried out again as long as the
    job lives. It is one text, for it goes to all agents with every change of what is known.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    under_way: str | None = None
    forgotten: str = ""


@dataclass(frozen=True)
class Asked:
    """Somebody asks."""

    request: Request


@dataclass(frozen=True)
class Viewed:
    """A view is in force: the one of the situation."""


@dataclass(frozen=True)
class Heard:
    """The leader's word on a demand: why it cannot be, or with an empty ``refusal`` that it is done, and the result."""

    demand: str
    refusal: str = ""
    result: str = ""


@dataclass(frozen=True)
class Measured:
    """Steps that the leader measured, while nobody was getting ready beside them."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Over:
    """Training is over; the situation says how."""


@dataclass(frozen=True)
class Tick:
    """Time went by."""


Event = Asked | Viewed | Heard | Measured | Over | Tick


def current(ledger: Ledger) -> Entry | None:
    """The request that is under way."""
    return None if ledger.under_way is None else ledger.entries.get(ledger.under_way)


def first_answer(ledger: Ledger, request: Request) -> Answer | None:
    """What a request of this id was answered first; a refusal if it was another request."""
    entry = ledger.entries.get(request.id)
    if entry is None or entry.request == request:
        return entry.first if entry else None
    given = in_words(entry.request.action)
    return Answer("refused", f"the id {request.id!r} was given to another request, {given}; choose a new one")


def refusal_of_id(ledger: Ledger, request: Request) -> str | None:
    """Why a request of this id is neither new nor a repetition of one that is remembered; ``None`` if it is."""
    if request.id in ledger.entries:
        return None
    if _digest(request.id) in ledger.forgotten:
        return f"the id {request.id!r} was given to a request of this job that ended long ago; choose a new one"
    count = len(ledger.forgotten) // _LINE
    if count >= MOST_FORGOTTEN and not isinstance(request.action, Stop):
        return (
            f"this job has answered {count + len(ledger.entries)} requests and cannot tell any more "
            "whether an id is new; it takes only stop: go on from a checkpoint in a new job"
        )
    return None


def noted(ledger: Ledger, entry: Entry) -> Ledger:
    """With this entry; of the oldest ones that are not under way only the ids are kept."""
    entries, forgotten = {**ledger.entries, entry.request.id: entry}, ledger.forgotten
    spare = [name for name in entries if name not in (ledger.under_way, entry.request.id)]
    for old in spare[: max(0, len(entries) - REMEMBERED)]:
        del entries[old]
        forgotten += _digest(old)
    return replace(ledger, entries=entries, forgotten=forgotten)


def _digest(name: str) -> str:
    """A line; all are as long, so one is found only where one begins."""
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()
    return base64.b64encode(digest).decode().rstrip("=") + "\n"
