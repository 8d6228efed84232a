"""Where a peer stands in a transfer: what both sides of it need to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kungfu.runtime.core.transfer import Transfer, plan
from kungfu.runtime.core.view import View

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """The peer of ``rank`` in ``view``, whose ranks ``sources`` hold the state; ``secret`` is the job's, hexadecimal.

    No wait for another peer takes longer than ``deadline_s``. ``what`` tells a transfer from
    that of the state, which a view has once.
    """

    view: View
    rank: int
    sources: Sequence[int]
    job: str
    secret: str
    deadline_s: float
    what: str = ""

    @property
    def holds(self) -> bool:
        """Whether this peer holds the state from the start."""
        return self.rank in self.sources

    def transfers(self, total_bytes: int) -> dict[int, Transfer]:
        """Who takes what from whom."""
        return plan(self.view, self.sources, total_bytes=total_bytes)
