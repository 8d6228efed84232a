"""The context of a transfer of the state, known to both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kungfu.runtime.core.transfer import Transfer, plan
from kungfu.runtime.core.view import View


@dataclass(frozen=True)
class TransferContext:
    """One peer's part in a transfer among the peers of a view.

    Args:
        view: The view in which the transfer takes place.
        rank: The rank of this peer in it.
        sources: The ranks that hold the state from the start.
        job: The name of the job.
        secret: The job's secret, hexadecimal.
        deadline_s: Seconds; no wait for another peer takes longer.
        purpose: Tells this transfer from that of the whole state, which a view has once; empty for that one.
    """

    view: View
    rank: int
    sources: Sequence[int]
    job: str
    secret: str
    deadline_s: float
    purpose: str = ""

    @property
    def holds_state(self) -> bool:
        """True if this peer holds the state from the start."""
        return self.rank in self.sources

    def transfers(self, total_bytes: int) -> dict[int, Transfer]:
        """The parts that each rank without the state receives, and their sources."""
        return plan(self.view, self.sources, total_bytes=total_bytes)
