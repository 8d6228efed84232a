"""What this peer has heard of the ends of others: a wait for somebody who is gone ends at once, under its name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kungfu.errors import PeerFailure
from kungfu.runtime.core.view import View

__all__ = ["Breaches"]

_SEEN_BY_THEN_S = 1.0


class Breaches:
    """Facts that only ever grow: peers that are gone, by id, and the newest view that is broken."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._gone: dict[int, str] = {}
        self._broken, self._how = 0, ""
        self._heard_at = 0.0

    def announce(self, *, peer: int, version: int, how: str) -> None:
        """Process ``peer`` is gone (-1: none is), and views up to ``version`` are broken (0: none is)."""
        with self._lock:
            self._heard_at = self._clock()
            if peer >= 0:
                self._gone[peer] = how
            if version > self._broken:
                self._broken, self._how = version, how

    def gone(self, peer: int) -> bool:
        """Whether this peer is known to have ended."""
        with self._lock:
            return peer in self._gone

    def of(self, view: View) -> PeerFailure | None:
        """Why a wait for the members of ``view`` is in vain; ``None`` if nothing speaks against it.

        >>> from kungfu.runtime.core.view import Peer
        >>> breaches, view = Breaches(), View(3, (Peer(0, "a:1"), Peer(4, "a:2")))
        >>> breaches.of(view)
        >>> breaches.announce(peer=4, version=0, how="killed by SIGKILL")
        >>> breaches.of(view)
        PeerFailure('rank 1 (peer 4) is gone: killed by SIGKILL')
        >>> breaches.of(view).peers
        (4,)
        """
        with self._lock:
            for rank, peer in enumerate(view.peers):
                if peer.id in self._gone:
                    text = f"rank {rank} (peer {peer.id}) is gone: {self._gone[peer.id]}"
                    return PeerFailure(text, ranks=[rank], peers=[peer.id], view=view.version)
            # A view that others have left: who is at fault they have told the agent.
            broken = view.version <= self._broken
            return PeerFailure(f"view {view.version} is broken: {self._how}", view=view.version) if broken else None

    def of_long(self, view: View) -> PeerFailure | None:
        """The same, once nothing new was heard for a second.

        Attachments see the end of a process by themselves, and at once. Who was given up because its host stands still
        or is cut off may live and train on with this peer: only what was heard speaks against that.
        """
        with self._lock:
            news = self._gone or self._broken
            if not news or self._clock() - self._heard_at < _SEEN_BY_THEN_S:
                return None
        return self.of(view)
