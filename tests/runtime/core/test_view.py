"""Views: who is in, in which order, and how counts are spread over them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import InternalError
from kungfu.runtime.core.view import Peer, View, spread
from tests.runtime.core.cluster.cluster_steps import view_of


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 30), max_size=4)), max_size=12))
def test_any_history_keeps_ids_unique_stayers_in_order_and_versions_rising(
    history: list[tuple[int, list[int]]],
) -> None:
    view = view_of(0, 1, 2)
    for leaving, wanted in history:
        gone = set(view.leave_order()[: min(leaving, view.size - 1)])
        join = {id_ for id_ in wanted if id_ not in view.ids}
        after = view.changed(leave=gone, join=[Peer(id_, f"host:{id_}") for id_ in join])
        stayers = [id_ for id_ in view.ids if id_ not in gone]
        assert list(after.ids) == stayers + sorted(join)
        assert len(set(after.ids)) == after.size
        assert after.version == view.version + 1
        assert all(after.rank_of(id_) == rank for rank, id_ in enumerate(stayers))
        view = after


@pytest.mark.parametrize(
    ("speeds", "order"),
    [
        # by what is measured of peers 4, 2, 9, in rank order: nothing, or nothing clearly slow
        ({}, (9, 2, 4)),
        ({4: 1.0, 2: 1.0, 9: 1.0}, (9, 2, 4)),
        ({4: 0.9, 2: 0.95, 9: 3.0}, (9, 2, 4)),
        # one that is clearly slow, whoever it is
        ({4: 0.899, 2: 1.0, 9: 1.0}, (4, 9, 2)),
        ({4: 1.0, 2: 0.5, 9: 1.0}, (2, 9, 4)),
        # several, slowest first; of equals the newer one
        ({4: 0.5, 2: 0.25, 9: 1.0}, (2, 4, 9)),
        ({4: 0.5, 2: 0.5, 9: 0.7}, (2, 4, 9)),
        # a peer without a value is not slow, and a value of a peer that is gone counts for nothing
        ({4: math.nan, 2: 0.0}, (2, 9, 4)),
        ({4: 0.5, 7: 0.1}, (4, 9, 2)),
        ({4: math.inf, 2: -math.inf}, (2, 9, 4)),
    ],
)
def test_clearly_slow_peers_leave_first_and_then_the_newest(speeds: dict[int, float], order: tuple[int, ...]) -> None:
    assert view_of(4, 2, 9).leave_order(speeds) == order


@pytest.mark.parametrize(
    ("view", "begins"),
    [
        (View(0, ()), True),  # of a program that runs alone
        (View(1, ()), True),
        (View(2, ()), False),
        (View(2, (), begins_phase=True), True),
    ],
)
def test_the_first_view_of_a_job_or_a_phase_begins_it(view: View, begins: bool) -> None:
    """In any other view, a new peer takes over the state of the others, and training counts as rescaled."""
    assert view.begins is begins


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
