"""What a failed collective says, as our error with the names of the peers."""

from __future__ import annotations

import re
from typing import Any

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure
from kungfu.training.barrier import Barrier

__all__ = ["translated"]

_OURS = re.compile(r"kungfu: (.*)")


def translated(error: Any, barrier: Barrier) -> Exception:
    """Ours for an error of the all-reduce; any other error of the graph is the user's own and stays what it is."""
    text = str(error.message)
    match = _OURS.search(text)
    if match is None:
        lost = "horovod" in text.lower() or "gloo" in text.lower()
        return PeerFailure(f"the all-reduce lost a peer: {text.splitlines()[0]}") if lost else error
    said, kind = match[1].split("\n")[0], _kind(match[1])
    return kind(f"in step {int(barrier.equipment.ledger.progress.step.numpy()) + 1}: {said}")


def _kind(said: str) -> type[KungfuError]:
    if said.startswith("waited"):
        return DeadlineExceeded
    return InternalError if said.startswith("peers differ") else PeerFailure
