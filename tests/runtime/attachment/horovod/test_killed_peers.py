"""A peer that is killed while the engines of a view connect takes no other one along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.attachment.horovod.test_attachment import WITHOUT
from tests.runtime.attachment.peer_process import PeerProcess
from tests.soak import SOAK

pytest.importorskip(
    "horovod.tensorflow", reason="horovod is not installed; `python -m kungfu.native.horovod` builds it"
)

pytestmark = pytest.mark.slow
Ask = Callable[..., dict[str, Any]]
SOME = [(2, 1, 1), (2, 0, 5), (3, 2, 20), (3, 0, 50), (3, 1, 5)]
ALL = [(size, victim, ms) for size, ms in product((2, 3), (0, 1, 2, 5, 10, 20, 35, 50, 80)) for victim in range(size)]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    peers = PeerProcess(Path(__file__).with_name("killed_peers.py"), without=WITHOUT)

    def answer(**asked: Any) -> dict[str, Any]:
        peers.tell("view", **asked)
        return peers.hear()

    try:
        yield answer
    finally:
        peers.kill()


@pytest.mark.parametrize(("size", "victim", "ms"), [*SOME, *(pytest.param(*one, marks=SOAK) for one in ALL)])
def test_the_others_hear_of_it_and_go_on_in_the_next_view(size: int, victim: int, ms: int, ask: Ask) -> None:
    heard = ask(size=size, victim=victim, ms=ms, deadline_s=60.0, told=True)
    assert heard["codes"] == [-9 if rank == victim else 0 for rank in range(size)]
    for survivor in heard["survivors"]:
        # Killed so late that all had connected, it left before their first message; or in the middle of it.
        assert survivor["first"] in (
            f"PeerFailure: rank {victim} was killed",
            "PeerFailure: a peer died or left, and the all-reduce with it (Horovod has been shut down)",
        )
        assert survivor["seconds"] < 30, "the deadline is 60 s"
        assert survivor["next"] == size - 1


def test_without_anybody_who_tells_them_the_deadline_ends_it(ask: Ask) -> None:
    heard = ask(size=3, victim=2, ms=5, deadline_s=3.0, told=False)
    assert heard["codes"] == [0, 0, -9]
    for survivor in heard["survivors"]:
        causes = "DeadlineExceeded: waited 3", "PeerFailure: a peer of view 1 died or left while the peers connected ("
        assert survivor["first"].startswith(causes)
        assert survivor["next"] == 2
