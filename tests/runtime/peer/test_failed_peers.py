"""What a peer has heard of the ends of others."""

from __future__ import annotations

from kungfu.errors import PeerFailure
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.peer.failed_peers import FailedPeers

VIEW = View(3, (Peer(0, "a:1"), Peer(4, "b:1")))


def said(failure: PeerFailure | None) -> tuple[str, tuple[int, ...], tuple[int, ...], int | None]:
    return str(failure), failure.ranks, failure.peers, failure.view


def test_a_given_up_peer_that_lives_counts_after_the_attachment_had_its_time() -> None:
    now = [10.0]
    failed_peers = FailedPeers(clock=lambda: now[0])
    assert failed_peers.lasting_failure_in(VIEW) is None
    failed_peers.announce(peer=4, version=3, how="its host is lost")
    assert said(failed_peers.failure_in(VIEW)) == ("rank 1 (peer 4) is gone: its host is lost", (1,), (4,), 3)
    assert failed_peers.lasting_failure_in(VIEW) is None
    now[0] += 1.0
    assert said(failed_peers.lasting_failure_in(VIEW)) == said(failed_peers.failure_in(VIEW))
    assert failed_peers.lasting_failure_in(View(5, VIEW.peers[:1])) is None, "it is not in the next view"


def test_a_view_that_is_broken_is_so_for_good_and_a_later_one_is_not() -> None:
    failed_peers = FailedPeers(clock=lambda: 10.0)
    failed_peers.announce(peer=-1, version=3, how="rank 0 said so")
    failed_peers.announce(peer=-1, version=2, how="late")
    found = said(failed_peers.failure_in(VIEW))
    assert found == ("view 3 is broken: rank 0 said so", (), (), 3), "nobody is accused in a text"
    assert failed_peers.failure_in(View(4, VIEW.peers)) is None
