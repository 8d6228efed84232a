"""Derives kungfu's errors from the texts of Horovod and Gloo about failed messages.

Horovod's ops fail with the same TensorFlow error code for nearly every cause, and only the text gives the cause. So
this is the only module that reads a text to find a cause; all others use the fields of errors.
"""

from __future__ import annotations

import re

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure

_HOROVOD = re.compile(r"horovod has been shut down|horovod has not been initialized|mismatched", re.IGNORECASE)
_MACHINE = re.compile(r"Unable to find (?:address|interface)[^\n]*")  # the interface that the engine should use
_GLOO = re.compile(r"(?:\[[^]\n]*/gloo/[^]\n]*\] )+([^\n]*)")  # on any peer in a message whose connection fails


def read_failure(text: str, *, gave_up: DeadlineExceeded | None = None) -> KungfuError | None:
    """The error described by a text of TensorFlow; ``None`` if the text is not about a message of Horovod.

    If this peer itself ended the wait, for the reason ``gave_up``, Horovod's text reports only a shutdown.

    >>> read_failure("Horovod has been shut down. ...")
    PeerFailure('a peer died or left, and the all-reduce with it (Horovod has been shut down)')
    """
    horovod, gloo = _HOROVOD.search(text), _GLOO.search(text)
    if horovod is None and gloo is None:
        return None
    # This peer stopped the engine, because the deadline of the message expired.
    if gave_up is not None:
        return gave_up
    # The tensors of two peers have different shapes or types: not all run the same program.
    said = horovod[0] if horovod is not None else gloo[1] if gloo is not None else ""
    if said.lower() == "mismatched":
        return InternalError(f"peers differ: {text.splitlines()[0]}")
    # The engine or connection of another peer has ended; Horovod does not name the peer.
    return PeerFailure(f"a peer died or left, and the all-reduce with it ({said})")


def read_start_failure(text: str, *, rank: int, view: int) -> KungfuError:
    """The error for a failed start of Horovod, caused by this machine or by another peer.

    >>> read_start_failure("[a/gloo/transport/tcp/pair.cc:598] Connection closed by peer [::1]:4", rank=0, view=3)
    PeerFailure('a peer of view 3 died or left while the peers connected (Connection closed by peer [::1]:4)')
    """
    # This machine lacks the address or interface that the engine should use; other peers are not at fault.
    if (machine := _MACHINE.search(text)) is not None:
        return InternalError(f"horovod cannot start as rank {rank} of view {view}: {machine[0]}")
    gloo = _GLOO.search(text)
    said = gloo[1] if gloo is not None else text
    return PeerFailure(f"a peer of view {view} died or left while the peers connected ({said})", view=view)
