"""The shared state: compared between peers, and on its way to those who lack it."""

from kungfu.runtime.state.buffers import Buffers, digests
from kungfu.runtime.state.compare import differing, first_difference, sampled
from kungfu.runtime.state.fetch import fetch
from kungfu.runtime.state.lend import Desk, lent
from kungfu.runtime.state.place import Place
from kungfu.runtime.state.reconcile import reconciled
from kungfu.runtime.state.rounding import ROUNDING, Gap, gap_of
from kungfu.runtime.state.settle import settled
from kungfu.runtime.state.state import ReplicatedState

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
