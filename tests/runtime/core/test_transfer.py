"""Who gives the state to whom: on one host, over the network, in turns."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.transfer import Transfer, near_of, plan, queue_of
from kungfu.runtime.core.view import Peer, View


def view_of(hosts: str) -> View:
    """One peer for every letter, which is its host."""
    return View(2, tuple(Peer(rank, f"{host}:{rank}") for rank, host in enumerate(hosts)))


def taken(hosts: str, sources: list[int]) -> dict[int, tuple[int, list[tuple[int, int, int]]]]:
    transfers = plan(view_of(hosts), sources, total_bytes=12)
    return {
        rank: (transfer.turn, [(part.source, part.start, part.stop) for part in transfer.parts])
        for rank, transfer in transfers.items()
    }


@pytest.mark.parametrize(
    ("hosts", "sources", "expected"),
    [
        ("aaa", [0, 1], {2: (0, [(0, 0, 6), (1, 6, 12)])}),
        ("aa", [0, 1], {}),
        # Two on one host begin with different holders and go at the same time.
        ("aaaa", [0, 1], {2: (0, [(0, 0, 6), (1, 6, 12)]), 3: (0, [(1, 0, 6), (0, 6, 12)])}),
        # Elan, figure 9: E has a holder on its host, F on another: both at once, each from its own.
        ("aaabab", [0, 1, 2, 3], {4: (0, [(0, 0, 4), (1, 4, 8), (2, 8, 12)]), 5: (0, [(3, 0, 12)])}),
        # A host without a holder: its first peer takes from all, the next one from that one.
        ("aabb", [0, 1], {2: (0, [(0, 0, 6), (1, 6, 12)]), 3: (1, [(2, 0, 12)])}),
        # Two such hosts share the giver's link: one after the other.
        ("abc", [0], {1: (0, [(0, 0, 12)]), 2: (1, [(0, 0, 6), (1, 6, 12)])}),
        # Two givers on two hosts, two takers on two others: at once, over different links.
        ("abcd", [0, 1], {2: (0, [(0, 0, 12)]), 3: (0, [(1, 0, 12)])}),
        # Holders double with every turn.
        ("abcd", [0], {1: (0, [(0, 0, 12)]), 2: (1, [(0, 0, 12)]), 3: (1, [(1, 0, 12)])}),
        # More than four holders: four are enough.
        ("aaaaaa", [0, 1, 2, 3, 4], {5: (0, [(0, 0, 3), (1, 3, 6), (2, 6, 9), (3, 9, 12)])}),
    ],
)
def test_who_takes_what_from_whom_and_when(hosts: str, sources: list[int], expected: dict) -> None:
    assert taken(hosts, sources) == expected


@st.composite
def clusters(draw: st.DrawFn) -> tuple[View, list[int]]:
    hosts = draw(st.text(alphabet="abcdef", min_size=1, max_size=12))
    sources = draw(st.sets(st.integers(0, len(hosts) - 1), min_size=1))
    return view_of(hosts), sorted(sources)


@given(clusters(), st.integers(0, 1000))
def test_every_peer_gets_each_byte_once_and_links_are_not_shared(cluster: tuple[View, list[int]], total: int) -> None:
    view, sources = cluster
    transfers = plan(view, sources, total_bytes=total)
    assert set(transfers) == set(range(view.size)) - set(sources)
    for rank, transfer in transfers.items():
        assert [part.start for part in transfer.parts] == [0, *(part.stop for part in transfer.parts[:-1])]
        assert transfer.parts[-1].stop == total
        assert all(holds_before(part.source, transfer, transfers) for part in transfer.parts)
        hosts = {view.peers[part.source].host for part in transfer.parts}
        if any(view.peers[source].host == view.peers[rank].host for source in sources):
            assert hosts == {view.peers[rank].host}
    for turn in {transfer.turn for transfer in transfers.values()}:
        assert max(links(view, transfers, turn).values(), default=1) == 1


def holds_before(source: int, transfer: Transfer, transfers: dict[int, Transfer]) -> bool:
    return source not in transfers or transfers[source].turn < transfer.turn


def links(view: View, transfers: dict[int, Transfer], turn: int) -> Counter[str]:
    """How many transfers go over the link of each host in a turn."""
    used: Counter[str] = Counter()
    for rank, transfer in transfers.items():
        givers = {view.peers[part.source].host for part in transfer.parts} - {view.peers[rank].host}
        if transfer.turn == turn and givers:
            used.update([*givers, view.peers[rank].host])
    return used


def test_a_giver_knows_who_comes_over_the_network_in_which_order_and_who_over_memory() -> None:
    view = view_of("abcabb")
    transfers = plan(view, [0], total_bytes=8)
    assert (queue_of(0, view, transfers), near_of(0, view, transfers)) == ((1, 2), (3,))
    assert (queue_of(1, view, transfers), near_of(1, view, transfers)) == ((2,), (4, 5))
    assert (queue_of(5, view, transfers), near_of(5, view, transfers)) == ((), ())
