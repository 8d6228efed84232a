"""The state of a new view: taken while the attachment opens, and served to the peers that lack it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest

from kungfu.errors import PeerFailure, UsageError
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.runtime.state.replicated_state import TransferContext
from kungfu.runtime.state.serve import StateServer
from kungfu.runtime.state.state_sync import sync_state
from tests.runtime.peer.held import Held

VIEW = View(2, tuple(Peer(rank, f"127.0.0.1:{rank}") for rank in range(3)))
CONTENT = bytes(range(256)) * 9000


def syncing(rank: int, state: Held, *, attach: Any = lambda: None, **more: Any) -> AbstractContextManager[Any]:
    context = TransferContext(VIEW, Credentials(f"sync-{os.getpid()}", 2, rank, 3, b"secret"), [0, 1], deadline_s=60.0)
    return sync_state(state, context, server=StateServer(), attach=attach, **more)


def test_all_end_with_one_digest_whether_they_held_the_state_or_took_it() -> None:
    states = [Held(CONTENT), Held(CONTENT), Held(bytes(len(CONTENT)))]
    attached, together = threading.Barrier(3), threading.Barrier(3)

    def sync(rank: int) -> dict[str, int]:
        with syncing(rank, states[rank], attach=lambda: attached.wait(180.0)) as digest:
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
    with pytest.raises(UsageError, match="another process"), syncing(rank, Held(), attach=refused):
        pytest.fail("the block was entered")


def test_nobody_can_take_from_a_peer_whose_view_has_started() -> None:
    with suppress(RuntimeError), syncing(0, Held(CONTENT)):
        raise RuntimeError
    with pytest.raises(PeerFailure, match="abandoned: too late"):
        syncing(2, Held(CONTENT), abandoned=lambda: PeerFailure("too late")).__enter__()
