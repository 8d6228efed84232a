"""What a failed collective says, as our error with the names of the peers."""

from __future__ import annotations

import re
from typing import Any

from kungfu.errors import DeadlineExceeded, InternalError, PeerFailure
from kungfu.training.barrier import Barrier

__all__ = ["read", "translated"]

_OURS = re.compile(r"kungfu: ([^\n]*?)(?: \[Op:.*)?$", re.MULTILINE)  # an eager op adds its name
_HOROVOD = re.compile(r"horovod has been shut down|horovod has not been initialized|mismatched", re.IGNORECASE)
_GLOO = re.compile(r"\[[^]\n]*/gloo/[^]\n]*\] ([^\n]*)")  # whoever is in a message when its connection fails


def translated(error: Any, barrier: Barrier, *, where: str) -> Exception:
    """Ours for an error of the all-reduce; any other error of the graph is the user's own and stays what it is.

    ``where`` is what the peers were doing: "step 7", "the barrier behind step 7".
    The attachment is left first: a failed one may keep its sockets open, and peers behind it waiting.
    """
    attachment = barrier.equipment.attachment
    found = read(str(error.message), where=where, reason=attachment.reason())
    if found is None:
        return error
    attachment.leave()
    return found


def read(text: str, *, where: str, reason: str = "") -> Exception | None:
    """The error of ours that the text of TensorFlow's stands for, ``None`` if it is not of an all-reduce.

    ``reason``: for whom this peer has waited in vain, where that is known.

    >>> read("Horovod has been shut down. ...", where="step 7")
    PeerFailure('in step 7: a peer died or left, and the all-reduce with it (Horovod has been shut down)')
    """
    where = f"in {where}: "
    if (ours := _OURS.search(text)) is not None:
        return _named(where, ours[1])
    theirs, gloo = _HOROVOD.search(text), _GLOO.search(text)
    if theirs is None and gloo is None:
        return None
    if reason:
        return DeadlineExceeded(where + reason)
    said = theirs[0] if theirs is not None else gloo[1] if gloo is not None else ""
    if said.lower() == "mismatched":
        return InternalError(f"{where}peers differ: {text.splitlines()[0]}")
    return PeerFailure(f"{where}a peer died or left, and the all-reduce with it ({said})")


def _named(where: str, said: str) -> Exception:
    if said.startswith("waited"):
        return DeadlineExceeded(where + said)
    return InternalError(where + said) if said.startswith("peers differ") else PeerFailure(where + said)
