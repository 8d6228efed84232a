"""All peers of a view say that they are there before Horovod starts.

Horovod's engine ends the whole process if a peer does not come to its own meeting. So nobody enters that one before all
have said here, under a deadline, that they are about to. Each says it with a proof, an HMAC under the job's secret over
what all must agree on; a peer of another job, view or size is refused. What Horovod itself sends afterwards is neither
encrypted nor authenticated: between hosts it belongs on a network that you trust.
"""

from __future__ import annotations

import hmac
import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass

from kungfu.errors import DeadlineExceeded, PeerFailure

__all__ = ["Roll", "muster"]

_REQUEST_S = 5.0


@dataclass(frozen=True)
class Roll:
    """Who this peer is, and who has to come. ``store`` is the ``HOST:PORT`` at which they meet."""

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


def muster(roll: Roll, *, deadline: float) -> None:
    """Gives back control when all peers of the view are there.

    ``deadline``: on the clock of ``time.monotonic``, seconds.

    Raises: ``DeadlineExceeded`` with the ranks that did not come; ``PeerFailure`` where the store is gone, or a peer
    has not proved that it belongs to the same view of the same job.
    """
    started = time.monotonic()
    _request(roll, "PUT", rank=roll.rank, body=roll.proof(roll.rank))
    missing = list(_missing(roll, deadline=deadline))
    if missing:
        raise DeadlineExceeded(
            f"waited {time.monotonic() - started:.1f} s for rank {', '.join(map(str, missing))} of {roll.size} to come "
            f"to view {roll.view} at {roll.store}; look into the log of the missing peers, or raise the deadline"
        )


def _missing(roll: Roll, *, deadline: float) -> Iterator[int]:
    for rank in range(roll.size):
        said = _request(roll, "GET", rank=rank)
        while said is None and time.monotonic() < deadline:
            said = _request(roll, "GET", rank=rank)
        if said is None:
            yield rank
        elif not hmac.compare_digest(said, roll.proof(rank)):
            raise PeerFailure(
                f"who came as rank {rank} to view {roll.view} of job {roll.job!r} has not proved that it knows the "
                f"job's secret, this view and its size {roll.size}; give all peers of a job the same secret"
            )


def _request(roll: Roll, method: str, *, rank: int, body: bytes | None = None) -> bytes | None:
    connection = http.client.HTTPConnection(roll.store, timeout=_REQUEST_S)
    try:
        connection.request(method, f"/kungfu/{rank}", body=body)
        response = connection.getresponse()
        said = response.read()
        return said if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException) as error:
        raise PeerFailure(
            f"rank 0 of view {roll.view} does not answer at {roll.store}, where the peers meet ({error}); it has died "
            "or cannot be reached from here: look into its log, and name its host so that all others reach it"
        ) from error
    finally:
        connection.close()
