"""The context of a transfer of the state, which sender and receiver share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kungfu.runtime.core.transfer import Transfer, plan
from kungfu.runtime.core.view import View


@dataclass(frozen=True)
class TransferContext:
    """One peer's part in a transfer among the peers of a view.

    Args:
        view: The view of the transfer.
        rank: The rank of this peer in it.
        sources: The ranks that hold the state from the start.
        job: The name of the job.
        secret: The job's secret, hexadecimal.
        deadline_s: Seconds; no wait for another peer takes longer.
        purpose: The name of this transfer within the view; empty for the transfer of the whole state.
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
        """The parts that each rank without the state receives, with their sources."""
        return plan(self.view, self.sources, total_bytes=total_bytes)
