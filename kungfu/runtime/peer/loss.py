"""What a peer knows of those that it lost."""

from __future__ import annotations

from dataclasses import dataclass

from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View

__all__ = ["Loss", "at_fault"]


@dataclass(frozen=True)
class Loss:
    """What this peer knows when it has lost others: the error, its steps done, and the terms in force."""

    error: KungfuError
    step: int
    terms: Terms


def at_fault(error: KungfuError, view: View) -> set[int]:
    """The ids of the peers that an error names; ranks are those of ``view``.

    >>> from kungfu.runtime.core.view import Peer
    >>> view = View(3, (Peer(0, "a:1"), Peer(4, "a:2"), Peer(5, "a:3")))
    >>> sorted(at_fault(DeadlineExceeded("nobody came", waiting_for=[1, 2]), view))
    [4, 5]
    >>> sorted(at_fault(PeerFailure("lost one that was about to join", peers=[7]), view))
    [7]
    >>> at_fault(PeerFailure("lost in the view before", ranks=[1], view=2), view)
    set()
    """
    match error:
        case PeerFailure():
            ranks = error.ranks
        case DeadlineExceeded():
            ranks = error.waiting_for
        case _:
            return set()
    if error.view not in (None, view.version):
        ranks = ()  # they were other peers
    return {view.ids[rank] for rank in ranks if rank < view.size} | set(error.peers)
