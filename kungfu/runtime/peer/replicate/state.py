"""What a peer replicates, as the runtime sees it: the memory of its variables."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from kungfu.runtime.peer.replicate.buffers import Buffers

__all__ = ["ReplicatedState"]


class ReplicatedState(Protocol):
    """The state of this peer. It is read and overwritten only while all peers stand at a barrier."""

    def lent(self) -> Buffers:
        """The memory of all replicated variables, to be read: what they hold now, as long as the buffers are held."""

    def overwritten(self) -> AbstractContextManager[Buffers]:
        """The memory of all replicated variables, to be written into; they have the new values at the end of the block.

        After an error inside the block the state is neither the old one nor the new one.
        """

    def digest(self) -> dict[str, int]:
        """A checksum of every shared variable, by name."""

    def sampled_digest(self, turn: int) -> dict[str, int]:
        """Checksums of a part of every shared variable; with every ``turn`` of another part, until all were seen."""

    def rescaled(self) -> None:
        """The view has changed: what declares so starts anew."""
