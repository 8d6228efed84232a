"""The result of a barrier or of the entry into a view, and what a peer may enter in the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kungfu.event_log.events import LoggedEvent
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.request import Asked
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View

# An entry of the job's record: an event, or a function that gives the fields of a line or its text when it is sent; see
# ``AgentClient.record``.
DeferredEntry = Callable[[], Mapping[str, Any] | str]
RecordEntry = LoggedEvent | DeferredEntry


@dataclass(frozen=True)
class PeerState:
    """Where this peer stands: its view and the terms in force; ``rank`` is ``None`` once it has left."""

    view: View
    rank: int | None
    terms: Terms


@dataclass(frozen=True)
class LossRecovery:
    """A recovery: how the others were lost, by id, how this peer noticed, and the rank whose state all go on with."""

    lost: Mapping[int, str]
    error: str
    source: int  # rank in the new view


@dataclass(frozen=True)
class BarrierResult:
    """What a barrier, or the entry into a view, came to.

    Args:
        before: Where this peer stood before; ``None`` for a joiner.
        after: Where it stands after.
        requests: The requests for a size or about peers that the coordinator carried out together; the first one asks
            for a size, if one does.
        superseded: Those that it passed over; known to the coordinator only.
        offer: The agent's offer that the coordinator decided with; known to the coordinator only.
        parts: Seconds that the parts took, by name.
        recovery: How this peer goes on, where others were lost.
        sources: The ranks of the view after it that held the state when that view began.
        slow: The peers that left first since they are slow, by id, with their speeds as fractions of the median
            peer's; known to the coordinator only.
    """

    before: PeerState | None
    after: PeerState
    requests: tuple[Asked, ...] = ()
    superseded: tuple[Asked, ...] = ()
    offer: JoinerOffer | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    recovery: LossRecovery | None = None
    sources: tuple[int, ...] = ()
    slow: Mapping[int, float] = field(default_factory=dict)
