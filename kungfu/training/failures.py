"""What a failed collective says, as our error with the names of the peers."""

from __future__ import annotations

import re
from typing import Any

from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure
from kungfu.training.barrier import Barrier

__all__ = ["translated"]

_OURS = re.compile(r"kungfu: ([^\n]*?)(?: \[Op:.*)?$", re.MULTILINE)  # an eager op adds its name
_HOROVOD = re.compile(r"horovod has been shut down|horovod has not been initialized|mismatched", re.IGNORECASE)


def translated(error: Any, barrier: Barrier, *, where: str) -> Exception:
    """Ours for an error of the all-reduce; any other error of the graph is the user's own and stays what it is.

    ``where`` is what the peers were doing: "step 7", "the barrier behind step 7".
    The attachment is left first: a failed one may keep its sockets open, and peers behind it waiting.
    """
    text, attachment = str(error.message), barrier.equipment.attachment
    ours, theirs = _OURS.search(text), _HOROVOD.search(text)
    if ours is None and theirs is None:
        return error
    reason = attachment.reason()
    attachment.leave()
    where = f"in {where}: "
    if ours is not None:
        return _named(where, ours[1])
    if reason:
        return DeadlineExceeded(where + reason)
    said = theirs[0] if theirs is not None else ""
    if said.lower() == "mismatched":
        return InternalError(f"{where}peers differ: {text.splitlines()[0]}")
    return PeerFailure(f"{where}a peer died or left, and the all-reduce with it ({said})")


def _named(where: str, said: str) -> Exception:
    if said.startswith("waited"):
        return DeadlineExceeded(where + said)
    return InternalError(where + said) if said.startswith("peers differ") else PeerFailure(where + said)
