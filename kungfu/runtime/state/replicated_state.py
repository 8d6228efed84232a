"""The state that a peer replicates, as the runtime sees it: the memory of its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kungfu.runtime.state.buffers import Buffers


class StateMemory(Protocol):
    """Variables as bytes, which other peers may copy."""

    def readable(self) -> Buffers:
        """The memory of all replicated variables, to be read: what they hold now, as long as the buffers are held."""

    def writable(self) -> AbstractContextManager[Buffers]:
        """The memory of all replicated variables, to be written into; they have the new values at the end of the block.

        After an error inside the block the state is neither the old one nor the new one.
        """


class ReplicatedState(StateMemory, Protocol):
    """The state of this peer. It is read and overwritten only while all peers stand at a barrier."""

    def digest(self) -> dict[str, int]:
        """A checksum of every shared variable, by name."""

    def sampled_digest(self, turn: int) -> dict[str, int]:
        """Checksums of a part of every shared variable; with every ``turn`` of another part, until all were seen."""

    def values(self, indices: Sequence[int]) -> list[NDArray[np.generic]]:
        """The contents of the shared variables at these indices, to be read; they count in the order of the digest."""

    def assign(self, values: Mapping[int, NDArray[np.generic]]) -> None:
        """Gives shared variables, by index, other values of their shapes and dtypes."""

    def rescaled(self) -> None:
        """The view has changed: folds that declare a reset on a rescale start again."""
