"""What a peer knows of those that it lost."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kungfu.errors import KungfuError
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View

__all__ = ["Loss", "named_in"]

_BY_RANK = re.compile(r"rank[ =]([0-9,]+)")
_BY_ID = re.compile(r"peer ([0-9]+)")


@dataclass(frozen=True)
class Loss:
    """What this peer knows when it has lost others: the error, its steps done, and the terms in force."""

    error: KungfuError
    step: int
    terms: Terms


def named_in(error: str, view: View) -> set[int]:
    """The ids of the ranks of ``view``, and of other peers, that an error names.

    >>> from kungfu.runtime.core.view import Peer
    >>> view = View(3, (Peer(0, "a:1"), Peer(4, "a:2"), Peer(5, "a:3")))
    >>> sorted(named_in("waited 5.0 s in gradients for rank=1,2", view))
    [4, 5]
    >>> sorted(named_in("lost peer 7, about to join", view))
    [7]
    """
    ranks = {int(word) for match in _BY_RANK.findall(error) for word in match.split(",") if word}
    ids = {view.ids[rank] for rank in ranks if rank < view.size}
    return ids | {int(peer) for peer in _BY_ID.findall(error)}
