"""All peers of a view say that they are there before Horovod starts.

Horovod's engine ends the whole process if a peer does not come to its own meeting. So nobody enters that one before all
have said here, under a deadline, that they are about to. Each says it with a proof, an HMAC under the job's secret over
what all must agree on; a peer of another job, view or size is refused. What Horovod itself sends afterwards is neither
encrypted nor authenticated: between hosts it belongs on a network that you trust.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass
from functools import partial

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.attachment.horovod.store import get, get_now, listens_at, put
from kungfu.runtime.attachment.protocol import Abandoned, never

__all__ = ["Roll", "muster"]


@dataclass(frozen=True)
class Roll:
    """Who this peer is, and who has to come. ``store`` is the address at which they meet."""

    store: str
    job: str
    view: int
    rank: int
    size: int
    secret: bytes

    def proof(self, rank: int) -> bytes:
        """What the peer of ``rank`` says, in hexadecimal."""
        text = f"horovod {self.job!r} {self.view} {self.size} {rank}"
        return hmac.digest(self.secret, text.encode(), "sha256").hex().encode()


def muster(roll: Roll, *, deadline: float, abandoned: Abandoned = never) -> None:
    """Gives back control when all peers of the view are there.

    ``deadline``: on the clock of ``time.monotonic``, seconds.

    Raises: ``DeadlineExceeded`` with the ranks that did not come; ``PeerFailure`` where the store is gone, or a peer
    has not proved that it belongs to the same view of the same job; and the one that ``abandoned`` gives.
    """
    started, where = time.monotonic(), listens_at(roll.store)
    try:
        put(roll.store, key=_key(roll.rank), value=roll.proof(roll.rank))
        there = partial(_is_there, roll, deadline=deadline, abandoned=abandoned)
        missing = [rank for rank in range(roll.size) if not there(rank)]
    except OSError as error:
        raise PeerFailure(
            f"rank 0 of view {roll.view} does not answer at {where}, where the peers meet ({error}); it has died "
            "or cannot be reached from here: look into its log, and name its host so that all others reach it",
            ranks=[0],
            view=roll.view,
        ) from error
    if missing:
        waited_s = time.monotonic() - started
        raise DeadlineExceeded(
            f"waited {waited_s:.1f} s for rank {', '.join(map(str, missing))} of {roll.size} to come "
            f"to view {roll.view} at {where}; look into the log of the missing peers, or raise the deadline",
            waiting_for=missing,
            waited_s=waited_s,
            view=roll.view,
        )


def _is_there(roll: Roll, rank: int, *, deadline: float, abandoned: Abandoned) -> bool:
    said = get_now(roll.store, key=_key(rank))
    while said is None and time.monotonic() < deadline:
        if (failure := abandoned()) is not None:
            raise failure
        said = get(roll.store, key=_key(rank))
    if said is not None and not hmac.compare_digest(said, roll.proof(rank)):
        raise PeerFailure(
            f"who came as rank {rank} to view {roll.view} of job {roll.job!r} has not proved that it knows the "
            f"job's secret, this view and its size {roll.size}; give all peers of a job the same secret",
            ranks=[rank],
            view=roll.view,
        )
    return said is not None


def _key(rank: int) -> str:
    return f"/kungfu-here/{rank}"
