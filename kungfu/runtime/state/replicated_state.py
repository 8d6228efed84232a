"""The interfaces through which the runtime reads and writes the replicated state, and the context of its transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kungfu.runtime.core.transfer import Transfer, plan
from kungfu.runtime.core.view import View
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.runtime.state.buffers import Buffers


class StateMemory(Protocol):
    """The memory of replicated variables, which other peers may copy."""

    def readable(self) -> Buffers:
        """The memory of all replicated variables, for reading; it does not change while the returned object exists."""

    def writable(self) -> AbstractContextManager[Buffers]:
        """The memory of all replicated variables, for writing; the variables have the new values after the block.

        After an error inside the block the state is neither the old nor the new one.
        """


class ReplicatedState(StateMemory, Protocol):
    """The state of this peer. It is read and overwritten only while all peers are at a barrier."""

    def digest(self) -> dict[str, int]:
        """The checksum of every shared variable, by name."""

    def sampled_digest(self, turn: int) -> dict[str, int]:
        """The checksums of a part of every shared variable; successive values of ``turn`` cover all parts."""

    def values(self, indices: Sequence[int]) -> list[NDArray[np.generic]]:
        """The values of some shared variables, for reading; ``indices`` are positions in the order of ``digest``."""

    def assign(self, values: Mapping[int, NDArray[np.generic]]) -> None:
        """Assigns new values of the same shapes and dtypes to shared variables, by index."""

    def rescaled(self) -> None:
        """Resets, after the view has changed, the folds that declare a reset on a rescale."""

    def regrouped(self, *, rank: int, size: int, is_source: bool) -> None:
        """Makes the state equal on the survivors of a loss if it need not be equal between steps, by messages.

        All peers of the survivors' view call this method once they are connected and the peers that are no sources
        have fetched a state; before the digest.
        """


@dataclass(frozen=True)
class TransferContext:
    """One peer's part in a transfer among the peers of a view.

    Args:
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
        """True if this peer holds the state when the transfer begins."""
        return self.me.rank in self.sources

    def transfers(self, total_bytes: int) -> dict[int, Transfer]:
        """The parts that each rank without the state receives, with their sources."""
        return plan(self.view, self.sources, total_bytes=total_bytes)
