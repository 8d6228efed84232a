"""The ledger of requests, as values: what was asked, the answers, and what happens to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kungfu.runtime.deciding.demand import Demand
from kungfu.runtime.deciding.requests.profiling import Point, Step, Survey
from kungfu.runtime.deciding.requests.request import Request, in_words

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
]

State = Literal["accepted", "carried out", "refused", "expired"]

# So many ended requests are remembered, so that a repeated id is known.
REMEMBERED = 1000


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
    demand: Demand | None = None
    survey: Survey | None = None


@dataclass(frozen=True)
class Ledger:
    """All requests by id, in the order in which they were asked, and which of them is under way."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    under_way: str | None = None


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


def noted(ledger: Ledger, entry: Entry) -> Ledger:
    """With this entry; the oldest ones that are not under way are forgotten."""
    entries = {**ledger.entries, entry.request.id: entry}
    spare = [name for name in entries if name not in (ledger.under_way, entry.request.id)]
    for old in spare[: max(0, len(entries) - REMEMBERED)]:
        del entries[old]
    return replace(ledger, entries=entries)
