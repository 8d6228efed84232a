"""The context of a transfer of the state, which sender and receiver share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kungfu.runtime.core.transfer import Transfer, plan
from kungfu.runtime.core.view import View
from kungfu.runtime.ipc.handshake import Credentials


@dataclass(frozen=True)
class TransferContext:
    """One peer's part in a transfer among the peers of a view.

    Args:
        view: The view of the transfer.
        me: This peer.
        sources: The ranks that hold the state from the start.
        deadline_s: The longest wait for another peer, in seconds.
        purpose: The name of this transfer within the view; empty for the transfer of the whole state.
    """

    view: View
    me: Credentials
    sources: Sequence[int]
    deadline_s: float
    purpose: str = ""

    @property
    def holds_state(self) -> bool:
        """True if this peer holds the state from the start."""
        return self.me.rank in self.sources

    def transfers(self, total_bytes: int) -> dict[int, Transfer]:
        """The parts that each rank without the state receives, with their sources."""
        return plan(self.view, self.sources, total_bytes=total_bytes)
