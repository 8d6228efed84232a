"""A job of one peer that nobody launched: the same life as in a job, without anybody to talk to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kungfu.errors import InternalError, PeerFailure
from kungfu.runtime.core.barrier import Adjust, BarrierResult, Decision, as_decided, with_requests
from kungfu.runtime.core.program_identity import NOTHING_SAID, Description
from kungfu.runtime.core.request import Asked, merge
from kungfu.runtime.core.shadow import ShadowAsk
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import NO_SPEEDS, Peer, View
from kungfu.runtime.peer.agent_client import RecordEntry
from kungfu.runtime.peer.data_position import DataPositionClient
from kungfu.runtime.peer.failed_peers import NoticedLoss
from kungfu.runtime.peer.past_phases import PastPhases
from kungfu.runtime.state import Compared, ReplicatedState


class StandaloneMembership:
    """Stays in a view of size 1: every barrier is held at once, and no request changes it.

    It is view 0, the one for which the loader cuts its first batch, so that no batch is ever stale.
    """

    def __init__(self) -> None:
        self.view = View(0, (Peer(0, ""),))
        self.past_phases = PastPhases()
        self.has_joined = True
        self.data_position: DataPositionClient | None = None

    def phases_over(self) -> int:
        """Nobody was here before."""
        return 0

    def fetch_phase(self, number: int) -> bytes:
        """The result of a phase after which a resumed run continues."""
        content = self.past_phases.content(number)
        if content is None:
            raise InternalError(f"phase {number} of a program that runs alone is not known")
        return content

    def begin_phase(self, number: int, *, on_offer: Callable[[], None]) -> None:
        """Nobody offers anything."""

    def join(
        self,
        state: ReplicatedState,
        *,
        description: Description = NOTHING_SAID,
        machine: str = "",
        opening_terms: Callable[[View, int], Terms] | None = None,
    ) -> BarrierResult:
        return BarrierResult(None, Decision(self.view, Terms()), 0, sources=(0,))

    def hold_barrier(
        self,
        state: ReplicatedState,
        terms: Terms,
        *,
        requests: Sequence[Asked] = (),
        shadows: Sequence[ShadowAsk] = (),
        adjust: Adjust = as_decided,
        speeds: Mapping[int, float] = NO_SPEEDS,
        compared: Compared = "part",
    ) -> BarrierResult:
        before = Decision(self.view, terms)
        decided = with_requests(before, merge(requests))
        return BarrierResult(before, replace(decided, terms=adjust(self.view, decided)), 0, sources=(0,))

    def recover(self, state: ReplicatedState, loss: NoticedLoss, *, adjust: Adjust = as_decided) -> BarrierResult:
        """There is no other peer to be lost: the error is the program's."""
        raise loss.error

    def final_barrier(self, state: ReplicatedState, terms: Terms, *, shadows: Sequence[ShadowAsk] = ()) -> None:
        """Nobody else has to agree that training is over."""

    def host_joiners(self) -> int | None:
        """Nobody joins."""
        return 0

    def lasting_failure(self) -> PeerFailure | None:
        """Nobody could be lost."""
        return None

    def mark_state_complete(self) -> None:
        """Nobody asks whether this peer holds the state."""

    def take_external_request(self) -> Asked | None:
        """Nobody can ask."""
        return None

    def record(self, stream: str, entry: RecordEntry) -> None:
        """Nobody keeps a journal of a program that runs alone."""

    def finish(self, summary: Mapping[str, Any], *, leaving: bool, phase: int = 0) -> None:
        """Nobody waits for it."""

    def withdraw(self) -> None:
        """Nobody waits for it."""

    def close(self) -> None:
        """Nothing is open."""
