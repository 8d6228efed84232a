"""The failed peers known to this peer, from reports of the agent and from local detection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View

_SEEN_BY_THEN_S = 1.0


class FailedPeers:
    """The ids of peers that are gone, and the newest broken view; entries are never removed."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._gone: dict[int, str] = {}
        self._broken, self._how = 0, ""
        self._heard_at = 0.0

    def announce(self, *, peer: int, version: int, how: str) -> None:
        """Records that process ``peer`` is gone (-1: none) and that views up to ``version`` are broken (0: none)."""
        with self._lock:
            self._heard_at = self._clock()
            # A process has ended: no view with this member can continue.
            if peer >= 0:
                self._gone[peer] = how
            # Views are broken, whichever peer is at fault.
            if version > self._broken:
                self._broken, self._how = version, how

    def gone(self, peer: int) -> bool:
        """True if this peer is known to have ended."""
        with self._lock:
            return peer in self._gone

    def failure_in(self, view: View) -> PeerFailure | None:
        """The failure that makes a wait for the members of ``view`` pointless; ``None`` if none is known.

        >>> from kungfu.runtime.core.view import Peer
        >>> failed_peers, view = FailedPeers(), View(3, (Peer(0, "a:1"), Peer(4, "a:2")))
        >>> failed_peers.failure_in(view)
        >>> failed_peers.announce(peer=4, version=0, how="killed by SIGKILL")
        >>> failed_peers.failure_in(view)
        PeerFailure('rank 1 (peer 4) is gone: killed by SIGKILL')
        >>> failed_peers.failure_in(view).peers
        (4,)
        """
        with self._lock:
            for rank, peer in enumerate(view.peers):
                # A member has ended.
                if peer.id in self._gone:
                    text = f"rank {rank} (peer {peer.id}) is gone: {self._gone[peer.id]}"
                    return PeerFailure(text, ranks=[rank], peers=[peer.id], view=view.version)
            # Others have left this view, and have reported to the agent which peers are at fault.
            broken = view.version <= self._broken
            return PeerFailure(f"view {view.version} is broken: {self._how}", view=view.version) if broken else None

    def lasting_failure_in(self, view: View) -> PeerFailure | None:
        """Returns the result of ``failure_in``, but ``None`` until nothing new has been announced for a second.

        The all-reduce detects the end of a process at once, without the agent. But a peer that was given up because its
        host is frozen or cut off may still train with this peer: only the agent's announcement reveals that failure.
        """
        # Nothing was announced. This is the usual case, and must be fast: every training step calls this method.
        if not (self._gone or self._broken):
            return None
        with self._lock:
            # The announcement is so recent that the attachment may be about to detect the failure on its own.
            if self._clock() - self._heard_at < _SEEN_BY_THEN_S:
                return None
        return self.failure_in(view)


@dataclass(frozen=True)
class NoticedLoss:
    """The loss of other peers as this peer noticed it: error, steps done, settings in force, stage and digest.

    The stage numbers the moments after the last step, see `kungfu.runtime.core.cluster.LossReport`; the digest covers
    the state at that stage.
    """

    error: KungfuError
    step: int
    terms: Terms
    stage: int = 0
    digest: int = 0


def at_fault(error: KungfuError, view: View) -> set[int]:
    """The ids of the peers that an error names.

    Args:
        error: The error by which a loss was noticed.
        view: The view to which the ranks in the error refer, unless the error names another view.

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
        # A connection ended.
        case PeerFailure():
            ranks = error.ranks
        # These peers did not arrive, though they may be alive.
        case DeadlineExceeded():
            ranks = error.waiting_for
        case _:
            return set()
    # The error is of another view, in which these ranks are other peers.
    if error.view not in (None, view.version):
        ranks = ()
    return {view.ids[rank] for rank in ranks if rank < view.size} | set(error.peers)
