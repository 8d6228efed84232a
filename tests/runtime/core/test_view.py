"""Views: who is in, in which order, and how counts are spread over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import InternalError
from kungfu.runtime.core.view import Peer, View, even_slices, spread


def view_of(*ids: int, version: int = 1) -> View:
    return View(version, tuple(Peer(id_, f"host:{id_}") for id_ in ids))


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 30), max_size=4)), max_size=12))
def test_any_history_keeps_ids_unique_stayers_in_order_and_versions_rising(
    history: list[tuple[int, list[int]]],
) -> None:
    view = view_of(0, 1, 2)
    for leaving, wanted in history:
        gone = set(view.newest(min(leaving, view.size - 1)))
        join = {id_ for id_ in wanted if id_ not in view.ids}
        after = view.changed(leave=gone, join=[Peer(id_, f"host:{id_}") for id_ in join])
        stayers = [id_ for id_ in view.ids if id_ not in gone]
        assert list(after.ids) == stayers + sorted(join)
        assert len(set(after.ids)) == after.size
        assert after.version == view.version + 1
        assert all(after.rank_of(id_) == rank for rank, id_ in enumerate(stayers))
        view = after


def test_the_newest_are_the_highest_ranks_whatever_their_ids() -> None:
    assert view_of(4, 2, 9).newest(2) == (2, 9)
    assert view_of(4, 2, 9).newest(0) == ()


def test_who_is_not_a_member_has_no_rank() -> None:
    assert view_of(4, 2).rank_of(2) == 1
    assert view_of(4, 2).rank_of(3) is None


def test_a_peer_is_known_by_its_host() -> None:
    assert Peer(0, "10.0.0.1:5000").host == "10.0.0.1"


def test_a_view_of_nobody_or_with_a_peer_twice_is_refused() -> None:
    with pytest.raises(InternalError, match=r"view 1 cannot become \[\]"):
        view_of(0, 1).changed(leave=[0, 1])
    with pytest.raises(InternalError, match=r"view 1 cannot become \[0, 1, 1\]"):
        view_of(0, 1).changed(join=[Peer(1, "other:1")])


@given(st.integers(0, 10**6), st.integers(1, 100))
def test_a_spread_covers_the_total_evenly_lower_ranks_first(total: int, parts: int) -> None:
    counts = spread(total, parts)
    assert sum(counts) == total
    assert len(counts) == parts
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@given(st.integers(0, 10**6), st.lists(st.integers(0, 50), min_size=1, max_size=20, unique=True))
def test_slices_lie_end_to_end_one_for_each_source(total: int, sources: list[int]) -> None:
    slices = even_slices(total, sources)
    assert [source for source, _, _ in slices] == sources
    assert [start for _, start, _ in slices] == [0, *(stop for _, _, stop in slices[:-1])]
    assert slices[-1][2] == total
