"""The state of a new view: taken while the attachment opens, and served to the peers that lack it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from kungfu.errors import PeerFailure, UsageError
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.runtime.state.serve import StateServer
from kungfu.runtime.state.state_sync import sync_state
from kungfu.runtime.state.transfer_context import TransferContext
from tests.runtime.peer.held import Held

VIEW = View(2, tuple(Peer(rank, f"127.0.0.1:{rank}") for rank in range(3)))
CONTENT = bytes(range(256)) * 9000


def context(rank: int, *, deadline_s: float = 60.0) -> TransferContext:
    return TransferContext(VIEW, Credentials(f"sync-{os.getpid()}", 2, rank, 3, b"secret"), [0, 1], deadline_s)


def test_all_end_with_one_digest_whether_they_held_the_state_or_took_it() -> None:
    states = [Held(CONTENT), Held(CONTENT), Held(bytes(len(CONTENT)))]
    attached, together = threading.Barrier(3), threading.Barrier(3)

    def sync(rank: int) -> dict[str, int]:
        with sync_state(
            states[rank], context(rank), server=StateServer(), attach=lambda: attached.wait(180.0) and None
        ) as digest:
            together.wait(180.0)
            return digest

    with ThreadPoolExecutor(3) as threads:
        digests = [*threads.map(sync, range(3))]
    assert digests == [states[0].digest()] * 3
    assert [state.content == CONTENT for state in states] == [True] * 3
    assert [state.rescales for state in states] == [1, 1, 1]


def refused() -> None:
    raise UsageError("another process runs as this peer")


@pytest.mark.parametrize("rank", [0, 2])
def test_an_attachment_that_does_not_open_ends_the_fetch(rank: int) -> None:
    with (
        pytest.raises(UsageError, match="another process"),
        sync_state(Held(), context(rank), server=StateServer(), attach=refused),
    ):
        pytest.fail("the block was entered")


def test_nobody_can_take_from_a_peer_whose_view_has_started() -> None:
    with suppress(RuntimeError), sync_state(Held(CONTENT), context(0), server=StateServer(), attach=lambda: None):
        raise RuntimeError
    with pytest.raises(PeerFailure, match="abandoned: too late"):
        sync_state(
            Held(CONTENT),
            context(2),
            server=StateServer(),
            attach=lambda: None,
            abandoned=lambda: PeerFailure("too late"),
        ).__enter__()
