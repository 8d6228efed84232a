"""Where a peer stands, how it came to stand there, and what it may tell: between this layer and training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kungfu.event_log.events import LoggedEvent
from kungfu.runtime.core.barrier import Decision, Prepared
from kungfu.runtime.core.barrier_requests import RescaleRequest
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View

__all__ = ["Adjust", "BarrierResult", "Standing", "Survived", "Told", "ToldLater", "as_decided"]

Adjust = Callable[[View, Decision], Terms]

# What goes into the job's record: an event, or a function that gives the fields of a line or its text; see
# ``Agency.record``.
ToldLater = Callable[[], Mapping[str, Any] | str]
Told = LoggedEvent | ToldLater


def as_decided(before: View, decision: Decision) -> Terms:
    """The terms that come with the decision, as they are."""
    return decision.terms


@dataclass(frozen=True)
class Standing:
    """Where this peer stands: its view and the terms in force; ``rank`` is ``None`` once it has left."""

    view: View
    rank: int | None
    terms: Terms


@dataclass(frozen=True)
class Survived:
    """What this peer lived through: how others were lost, by id, how it noticed, and whose state it goes on with."""

    lost: Mapping[int, str]
    error: str
    source: int  # rank in the new view


@dataclass(frozen=True)
class BarrierResult:
    """What a barrier came to: the standing after it, what led to it, and the seconds that its parts took.

    ``sources`` are the ranks of the view after it that held the state when that view began.
    """

    before: Standing | None
    after: Standing
    wish: RescaleRequest | None = None
    prepared: Prepared | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    survived: Survived | None = None
    sources: tuple[int, ...] = ()
