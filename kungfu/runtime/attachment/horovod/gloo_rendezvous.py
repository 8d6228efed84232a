"""The rendezvous of a view's peers before Horovod starts.

Horovod's engine does not name the peers that are missing at its own rendezvous, and accepts any peer. So no peer enters
that one before all have announced here, under a deadline, that they are about to. Each announcement is a proof, an HMAC
under the job's secret over the values that all must agree on; a peer of another job, view or size is refused. Horovod's
own traffic is neither encrypted nor authenticated: between hosts it belongs on a network that you trust.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.attachment.horovod.key_value_store import NoAnswerError, get, get_now, listens_at, put
from kungfu.runtime.attachment.protocol import AbandonReason, no_abandon_reason

_AGAIN_S = 0.1  # before a call that was not answered is repeated

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Roster:
    """This peer, and the peers that have to come.

    Args:
        store: The address of the key-value store of the view.
        job: The name of the job.
        view: The number of the view.
        rank: This peer's rank.
        size: The peers of the view.
        secret: The job's.
    """

    store: str
    job: str
    view: int
    rank: int
    size: int
    secret: bytes

    def proof(self, rank: int) -> bytes:
        """The announcement of the peer of ``rank``, in hexadecimal."""
        text = f"horovod {self.job!r} {self.view} {self.size} {rank}"
        return hmac.digest(self.secret, text.encode(), "sha256").hex().encode()


def wait_for_all(roster: Roster, *, deadline: float, abandoned: AbandonReason = no_abandon_reason) -> None:
    """Announces this peer, and returns when all peers of the view have announced themselves.

    Args:
        roster: This peer, and the peers that have to come.
        deadline: Seconds on the clock of ``time.monotonic``.
        abandoned: Gives a failure once waiting for the others is in vain.

    Raises:
        DeadlineExceeded: Names the ranks that did not come, or rank 0 if the store accepts calls and answers none.
        PeerFailure: The store is gone, a peer has not proved that it belongs to the same view of the same job, or
            ``abandoned`` gave this failure.
    """
    started, where = time.monotonic(), listens_at(roster.store)
    announce = partial(put, roster.store, key=_key(roster.rank), value=roster.proof(roster.rank))
    try:
        _answer_of(announce, deadline=deadline, abandoned=abandoned)
        there = partial(_is_there, roster, deadline=deadline, abandoned=abandoned)
        missing = [rank for rank in range(roster.size) if not there(rank)]
    # Rank 0, which keeps the store, is there and stands still: the host of a process that has ended refuses the call.
    except NoAnswerError:
        missing = [0]
    # Rank 0 has ended or cannot be reached: the peers cannot meet. The job may know why.
    except OSError as error:
        raise abandoned() or PeerFailure(
            f"rank 0 of view {roster.view} does not answer at {where}, where the peers meet ({error}); it has died "
            "or cannot be reached from here: look into its log, and name its host so that all others reach it",
            ranks=[0],
            view=roster.view,
        ) from error
    if missing:
        waited_s = time.monotonic() - started
        raise DeadlineExceeded(
            f"waited {waited_s:.1f} s for rank {', '.join(map(str, missing))} of {roster.size} to come "
            f"to view {roster.view} at {where}; look into the log of the missing peers, or raise the deadline",
            waiting_for=missing,
            waited_s=waited_s,
            view=roster.view,
        )


def _is_there(roster: Roster, rank: int, *, deadline: float, abandoned: AbandonReason) -> bool:
    # At least one look, even after the deadline: another rank may have used it up.
    ask = partial(_answer_of, deadline=deadline, abandoned=abandoned)
    announced = ask(partial(get_now, roster.store, key=_key(rank)))
    while announced is None and time.monotonic() < deadline:
        # The job has given this view up: a peer in it is gone.
        if (failure := abandoned()) is not None:
            raise failure
        announced = ask(partial(get, roster.store, key=_key(rank)))
    # Somebody came who is of another job, view or size.
    if announced is not None and not hmac.compare_digest(announced, roster.proof(rank)):
        raise PeerFailure(
            f"who came as rank {rank} to view {roster.view} of job {roster.job!r} has not proved that it knows the "
            f"job's secret, this view and its size {roster.size}; give all peers of a job the same secret",
            ranks=[rank],
            view=roster.view,
        )
    return announced is not None


def _answer_of(call: Callable[[], Answer], *, deadline: float, abandoned: AbandonReason) -> Answer:
    """Gives the store's answer. A call that it took and did not answer is repeated: a slow moment is no loss."""
    while True:
        try:
            return call()
        except NoAnswerError:
            # The job has given this view up meanwhile.
            if (failure := abandoned()) is not None:
                raise failure from None
            if time.monotonic() >= deadline:
                raise
        time.sleep(_AGAIN_S)


def _key(rank: int) -> str:
    return f"/kungfu-here/{rank}"
