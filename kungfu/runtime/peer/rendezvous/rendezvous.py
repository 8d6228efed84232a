"""A rendezvous: a known number of peers arrive at it, and all leave with the same result.

A rendezvous has no socket: the gRPC service arrives and waits on behalf of remote peers. The coordinator waits for all
arrivals and sets the result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.attachment.protocol import AbandonReason, no_abandon_reason

_LOOK_S = 0.2
_KEPT, _FORGOTTEN_S = 16, 600.0

Arrival = TypeVar("Arrival")
Result = TypeVar("Result")


class Rendezvous(Generic[Arrival, Result]):
    """One rendezvous: the arrivals of the peers, by rank, and the result that the coordinator sets for all of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrivals: dict[int, Arrival] = {}
        self._result: Result | None = None

    def arrive(self, rank: int, arrival: Arrival) -> None:
        """Records the arrival of ``rank``; a second arrival of the same rank replaces the first."""
        with self._changed:
            self._arrivals[rank] = arrival
            self._changed.notify_all()

    def everyone(
        self, size: int, *, deadline_s: float, what: str, abandoned: AbandonReason = no_abandon_reason
    ) -> dict[int, Arrival]:
        """Waits for the arrivals of all ranks below ``size``.

        Args:
            what: A description of the rendezvous, for errors.

        Raises:
            DeadlineExceeded: Some ranks are missing; the error names them.
            PeerFailure: The wait is pointless.
        """
        until = time.monotonic() + deadline_s
        with self._changed:
            while self._missing(size) and (left_s := until - time.monotonic()) > 0:
                # A peer is gone, or the view is broken: waiting is pointless.
                if (failure := abandoned()) is not None:
                    raise failure.prefixed(f"at {what}: ")
                self._changed.wait(min(left_s, _LOOK_S))
            # The deadline has expired.
            if missing := self._missing(size):
                names = ", ".join(f"rank {rank}" for rank in missing)
                text = f"waited {deadline_s:.1f} s at {what} for {names}"
                raise DeadlineExceeded(text, waiting_for=missing, waited_s=deadline_s)
            return {rank: self._arrivals[rank] for rank in range(size)}

    def _missing(self, size: int) -> list[int]:
        return [rank for rank in range(size) if rank not in self._arrivals]

    def wake(self) -> None:
        """Makes waiting threads check again whether their wait is pointless."""
        with self._changed:
            self._changed.notify_all()

    def conclude(self, result: Result) -> None:
        """Ends the rendezvous: all peers leave with ``result``."""
        with self._changed:
            self._result = result
            self._changed.notify_all()

    def result(self, *, deadline_s: float) -> Result | None:
        """Waits for the result that the coordinator sets; ``None`` if the deadline expires first."""
        with self._changed:
            self._changed.wait_for(lambda: self._result is not None, timeout=deadline_s)
            return self._result


class RendezvousTable(Generic[Arrival, Result]):
    """One rendezvous per key, created at its first use; only the newest are kept, for a limited time.

    No peer can lag by ``_KEPT`` rendezvous, since a rendezvous begins only after all peers have left the previous one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._open: dict[object, tuple[float, Rendezvous[Arrival, Result]]] = {}

    def at(self, key: object) -> Rendezvous[Arrival, Result]:
        """The rendezvous of this key, created if it is new."""
        with self._lock:
            now = self._clock()
            rendezvous = self._open.setdefault(key, (now, Rendezvous()))[1]
            others = [(k, since) for k, (since, _) in self._open.items() if k != key]
            for old, since in others:
                # No peer arrives at such an old rendezvous any more.
                if now - since > _FORGOTTEN_S or len(self._open) > _KEPT:
                    del self._open[old]
            return rendezvous

    def wake(self) -> None:
        """Makes waiting threads of every rendezvous check again whether their wait is pointless."""
        with self._lock:
            waiting = [rendezvous for _, rendezvous in self._open.values()]
        for rendezvous in waiting:
            rendezvous.wake()
