"""The rendezvous of a view's peers before Horovod starts.

At its own rendezvous, Horovod's engine does not name missing peers, and accepts any peer. So no peer starts its engine
before all have announced themselves here, under a deadline. Each announcement is a proof: an HMAC under the job's
secret over the values that all must agree on. A peer of another job, view or size is refused. Horovod's own traffic is
neither encrypted nor authenticated: between hosts it needs a trusted network.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.attachment.horovod.key_value_store import NoAnswerError, get, get_now, listens_at, put
from kungfu.runtime.attachment.protocol import AbandonReason, no_abandon_reason
from kungfu.runtime.ipc.handshake import Credentials

_AGAIN_S = 0.1  # before an unanswered call is repeated

Answer = TypeVar("Answer")


def wait_for_all(me: Credentials, *, store: str, deadline: float, abandoned: AbandonReason = no_abandon_reason) -> None:
    """Announces this peer, and returns when all peers of the view have announced themselves.

    Args:
        me: This peer and its view.
        store: The address of the key-value store of the view.
        deadline: Seconds on the clock of ``time.monotonic``.
        abandoned: Returns a failure once waiting for the others is pointless.

    Raises:
        DeadlineExceeded: The error names the ranks that did not arrive, or rank 0 if the store answers no call.
        PeerFailure: The store is gone, a peer has not proved that it belongs to the same view of the same job, or
            ``abandoned`` returned this failure.
    """
    started, where = time.monotonic(), listens_at(store)
    announce = partial(put, store, key=_key(me.rank), value=_proof(me, me.rank))
    try:
        _answer_of(announce, deadline=deadline, abandoned=abandoned)
        there = partial(_is_there, me, store, deadline=deadline, abandoned=abandoned)
        missing = [rank for rank in range(me.size) if not there(rank)]
    # Rank 0, which keeps the store, runs but does not answer: if its process had ended, its host would refuse the call.
    except NoAnswerError:
        missing = [0]
    # Rank 0 has ended or cannot be reached: the rendezvous fails. The job may know the reason.
    except OSError as error:
        raise abandoned() or PeerFailure(
            f"rank 0 of view {me.view} does not answer at {where}, where the peers meet ({error}); it has died "
            "or cannot be reached from here: look into its log, and name its host so that all others reach it",
            ranks=[0],
            view=me.view,
        ) from error
    if missing:
        waited_s = time.monotonic() - started
        raise DeadlineExceeded(
            f"waited {waited_s:.1f} s for rank {', '.join(map(str, missing))} of {me.size} to come "
            f"to view {me.view} at {where}; look into the log of the missing peers, or raise the deadline",
            waiting_for=missing,
            waited_s=waited_s,
            view=me.view,
        )


def _is_there(me: Credentials, store: str, rank: int, *, deadline: float, abandoned: AbandonReason) -> bool:
    # Each rank is checked at least once, even after the deadline, since another rank may have used up the time.
    ask = partial(_answer_of, deadline=deadline, abandoned=abandoned)
    announced = ask(partial(get_now, store, key=_key(rank)))
    while announced is None and time.monotonic() < deadline:
        # The job has given up this view, since one of its peers is gone.
        if (failure := abandoned()) is not None:
            raise failure
        announced = ask(partial(get, store, key=_key(rank)))
    # The announcing peer is of another job, view or size.
    if announced is not None and not hmac.compare_digest(announced, _proof(me, rank)):
        raise PeerFailure(
            f"who came as rank {rank} to view {me.view} of job {me.job!r} has not proved that it knows the "
            f"job's secret, this view and its size {me.size}; give all peers of a job the same secret",
            ranks=[rank],
            view=me.view,
        )
    return announced is not None


def _answer_of(call: Callable[[], Answer], *, deadline: float, abandoned: AbandonReason) -> Answer:
    """The store's answer. An accepted call without an answer is repeated, since the store may only be slow."""
    while True:
        try:
            return call()
        except NoAnswerError:
            # The job has given up this view meanwhile.
            if (failure := abandoned()) is not None:
                raise failure from None
            if time.monotonic() >= deadline:
                raise
        time.sleep(_AGAIN_S)


def _proof(me: Credentials, rank: int) -> bytes:
    """The proof, in hexadecimal, that the peer of ``rank`` belongs to this view of the job."""
    text = f"horovod {me.job!r} {me.view} {me.size} {rank}"
    return hmac.digest(me.secret, text.encode(), "sha256").hex().encode()


def _key(rank: int) -> str:
    return f"/kungfu-here/{rank}"
