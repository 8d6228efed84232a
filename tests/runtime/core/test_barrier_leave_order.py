"""Which peers leave when a job shrinks: the clearly slow ones first, then the newest."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.barrier import Decision, JoinerOffer, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, Resize, When
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer
from kungfu.runtime.settings import Limits
from tests.runtime.core.deciding import LIMITS, leaving, size_request, view_of


def decided(
    *asked: Asked,
    speeds: Mapping[int, float],
    size: int = 4,
    terms: Terms | None = None,
    limits: Limits = LIMITS,
    offer: JoinerOffer | None = None,
) -> Decision:
    terms = terms or Terms(32 * size, 32.0)
    requests = (*tuple(asked),)
    return decide(BarrierInput(view_of(size), terms, limits, requests=requests, offer=offer, speeds=speeds))


@pytest.mark.parametrize(
    ("target", "speeds", "ids", "slow"),
    [
        # nothing is measured: the newest go, as ever
        (2, {}, (0, 1), {}),
        # rank 0 is the straggler
        (2, {0: 0.51, 1: 1.0, 2: 1.0, 3: 1.0}, (1, 2), {0: 0.51}),
        (2, {0: 0.7, 1: 0.5, 2: 1.0, 3: 1.2}, (2, 3), {1: 0.5, 0: 0.7}),
        # below the least size nobody else leaves
        (0, {1: 0.5}, (0,), {1: 0.5}),
    ],
)
def test_a_shrink_lets_the_slow_peers_go_first(
    target: int, speeds: dict[int, float], ids: tuple[int, ...], slow: dict[int, float]
) -> None:
    decision = decided(size_request(target), speeds=speeds)
    assert decision.view.ids == ids
    assert (decision.slow, list(decision.slow)) == (slow, list(slow))
    assert decision.terms.global_batch_size == 32 * len(ids)


def test_a_shrink_that_somebody_outside_asks_for_does_too() -> None:
    requests = [Asked(Resize(3), "kungfu resize 3", 10, id="r")]
    decision = decide(BarrierInput(view_of(4), Terms(128, 32.0), LIMITS, requests=requests, speeds={1: 0.5}))
    assert (decision.view.ids, decision.slow) == ((0, 2, 3), {1: 0.5})


def test_those_under_way_are_dismissed_before_anybody_leaves() -> None:
    under_way, offer = Terms(128, 32.0, target_size=6), JoinerOffer((Peer(8, ""), Peer(9, "")))
    dismissed = decided(size_request(4), speeds={1: 0.5}, terms=under_way, offer=offer)
    assert (dismissed.view, dismissed.prepare, dismissed.slow) == (view_of(4), 4, {})
    fewer = decided(size_request(5), speeds={1: 0.5}, terms=under_way, offer=offer)
    assert (fewer.view.ids, fewer.slow) == ((0, 1, 2, 3, 8), {})


def test_named_peers_leave_before_slow_ones_and_are_not_told_as_slow() -> None:
    speeds = {0: 0.6, 1: 1.0, 2: 0.7, 3: 1.0}
    replaced = decided(size_request(3), leaving(3, when="replaced"), speeds=speeds)
    assert (replaced.view.ids, replaced.slow) == ((0, 1, 2), {})
    both = decided(size_request(2), leaving(3, when="replaced"), speeds=speeds)
    assert (both.view.ids, both.slow) == ((1, 2), {0: 0.6})
    evicted = decided(size_request(2), leaving(2, when="now"), speeds=speeds)
    assert (evicted.view.ids, evicted.slow) == ((1, 3), {0: 0.6})
    noticed = decided(size_request(2), leaving(1, when="noticed"), speeds=speeds)
    assert (noticed.view.ids, noticed.slow) == ((2, 3), {0: 0.6})


def test_a_slow_peer_whose_replacement_has_come_left_for_it_and_not_by_a_shrink() -> None:
    terms = Terms(128, 32.0, target_size=4, leaving=(1,))
    decision = decided(speeds={1: 0.5}, terms=terms, offer=JoinerOffer((Peer(9, ""),)))
    assert (decision.view.ids, decision.slow) == ((0, 2, 3, 9), {})
    # It was to be replaced, and the job shrinks before anybody has come.
    shrunk = decided(size_request(3), speeds={1: 0.5}, terms=terms)
    assert (shrunk.view.ids, shrunk.slow, shrunk.prepare) == ((0, 2, 3), {1: 0.5}, 3)


def test_a_peer_that_stays_until_others_hold_the_state_is_no_straggler_that_left() -> None:
    terms = Terms(96, 32.0, departing=(0,))
    decision = decided(size_request(2), speeds={0: 0.3, 2: 0.5}, terms=terms)
    assert (decision.view.ids, decision.slow) == ((1, 3), {2: 0.5})


def test_without_a_request_nobody_leaves_for_being_slow() -> None:
    decision = decided(speeds={0: 0.1, 1: 0.1})
    assert (decision.view, decision.slow) == (view_of(4), {})


@given(
    st.integers(1, 6),
    st.integers(0, 6),
    st.dictionaries(st.integers(0, 7), st.floats()),
    st.sets(st.integers(0, 6)),
    st.sampled_from(["now", "noticed", "replaced"]),
)
def test_whatever_the_speeds_as_many_leave_and_whoever_stays_keeps_its_place(
    size: int, target: int, speeds: dict[int, float], named: set[int], when: When
) -> None:
    asked = [size_request(target), *([leaving(*sorted(named), when=when)] if named else [])]
    by_speed, by_age = (decided(*asked, speeds=one, size=size) for one in (speeds, {}))
    assert by_speed.view.size == by_age.view.size
    assert by_speed.terms.global_batch_size == by_age.terms.global_batch_size
    assert list(by_speed.view.ids) == sorted(by_speed.view.ids)
    assert set(by_speed.slow) <= set(view_of(size).ids) - set(by_speed.view.ids) - named
    assert by_age.slow == {}
