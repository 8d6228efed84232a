"""The shared state: compared between peers, and on its way to those who lack it."""

from kungfu.runtime.peer.replicate.buffers import Buffers, digests
from kungfu.runtime.peer.replicate.compare import differing, first_difference, sampled
from kungfu.runtime.peer.replicate.fetch import fetch
from kungfu.runtime.peer.replicate.lend import Desk, lent
from kungfu.runtime.peer.replicate.place import Place
from kungfu.runtime.peer.replicate.reconcile import reconciled
from kungfu.runtime.peer.replicate.rounding import ROUNDING, Gap, gap_of
from kungfu.runtime.peer.replicate.settle import settled
from kungfu.runtime.peer.replicate.state import ReplicatedState

__all__ = [
    "ROUNDING",
    "Buffers",
    "Desk",
    "Gap",
    "Place",
    "ReplicatedState",
    "differing",
    "digests",
    "fetch",
    "first_difference",
    "gap_of",
    "lent",
    "reconciled",
    "sampled",
    "settled",
]
