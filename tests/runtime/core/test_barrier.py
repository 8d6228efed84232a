"""What a barrier decides: the table of the module, and the arithmetic of the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.barrier import Decision, Prepared, decide
from kungfu.runtime.core.barrier_requests import BarrierRequests, Leave, RescaleRequest
from kungfu.runtime.core.terms import Keep, RunPosition, SettingChange, Terms, apply_settings
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Limits

LIMITS = Limits(1, 6)
Requests = tuple[RescaleRequest, ...]


def peers(*ids: int) -> tuple[Peer, ...]:
    return tuple(Peer(id_, f"host:{id_}") for id_ in ids)


def view_of(size: int, *, version: int = 5) -> View:
    return View(version, peers(*range(size)))


def size_request(size: int, keep: Keep = "local_batch_size", *, most: int | None = None) -> RescaleRequest:
    return RescaleRequest(size, keep, "rule", 10, max_global_batch=most)


def decided(
    view: View,
    terms: Terms,
    limits: Limits,
    *,
    asked: RescaleRequest | Requests | None = None,
    prepared: Prepared | None = None,
) -> Decision:
    """What is decided, without the requests that it follows from, and without the count of replaced peers."""
    requests = () if asked is None else asked if isinstance(asked, tuple) else (asked,)
    decision = decide(view, terms, limits, requests=BarrierRequests(requests), prepared=prepared)
    assert sorted(map(repr, decision.requests)) == sorted(map(repr, requests))
    return replace(decision, requests=(), terms=replace(decision.terms, replaced_peers=0))


def terms_of(size: int, *, per_peer: float = 32.0, target: int = 0, keep: Keep = "local_batch_size") -> Terms:
    return Terms(round(per_peer * size), per_peer, target, 0, keep)


def grown(size: int, target: int, keep: Keep = "local_batch_size", terms: Terms | None = None) -> Decision:
    """Two barriers: one that asks for peers, one at which they are all there."""
    view = view_of(size)
    asked = decided(view, terms or terms_of(size), LIMITS, asked=size_request(target, keep))
    offer = Prepared(peers(*range(100, 100 + target - size)))
    return decided(view, asked.terms, LIMITS, prepared=offer)


# ---- the table ------------------------------------------------------------------------------------------------------


def test_without_a_request_or_an_offer_nothing_changes() -> None:
    assert decided(view_of(2), terms_of(2), LIMITS) == Decision(view_of(2), terms_of(2))


def test_a_smaller_request_lets_the_newest_go_at_once() -> None:
    decision = decided(view_of(4), terms_of(4), LIMITS, asked=size_request(2))
    assert decision == Decision(View(6, peers(0, 1)), Terms(64, 32.0), prepare=None)


def test_a_smaller_request_dismisses_those_under_way_offered_or_not() -> None:
    under_way = terms_of(3, target=5)
    for offer in (None, Prepared(peers(7, 8))):
        decision = decided(view_of(3), under_way, LIMITS, asked=size_request(2), prepared=offer)
        assert (decision.view.ids, decision.prepare, decision.terms.target_size) == ((0, 1), 2, 0)


def test_a_larger_request_prepares_peers_while_the_view_stays() -> None:
    decision = decided(view_of(2), terms_of(2), LIMITS, asked=size_request(4))
    assert decision == Decision(view_of(2), terms_of(2, target=4), prepare=4)


def test_prepared_peers_join_behind_the_others() -> None:
    decision = decided(view_of(2), terms_of(2, target=4), LIMITS, prepared=Prepared(peers(8, 7)))
    assert decision.view == View(6, peers(0, 1, 7, 8))
    assert decision.terms == Terms(128, 32.0, target_size=0, refused_size=0)


def test_those_who_are_there_join_and_the_target_is_marked_as_refused() -> None:
    offer = Prepared(peers(7), missing=(8,), reason="peer 8: ended")
    decision = decided(view_of(2), terms_of(2, target=4), LIMITS, prepared=offer)
    assert decision.view.ids == (0, 1, 7)
    assert decision.terms == Terms(96, 32.0, target_size=0, refused_size=4)


def test_when_nobody_came_the_view_stays_and_triggers_are_free_again() -> None:
    offer = Prepared((), missing=(7, 8), reason="ended")
    decision = decided(view_of(2), terms_of(2, target=4), LIMITS, prepared=offer)
    assert decision.view == view_of(2)
    assert (decision.terms.target_size, decision.terms.refused_size, decision.prepare) == (0, 4, 2)


def test_a_request_for_the_present_size_dismisses_those_under_way() -> None:
    decision = decided(view_of(2), terms_of(2, target=4), LIMITS, asked=size_request(2), prepared=Prepared(peers(7, 8)))
    assert decision == Decision(view_of(2), terms_of(2), prepare=2)
    assert decided(view_of(2), terms_of(2), LIMITS, asked=size_request(2)).prepare is None


# ---- the newest request wins -----------------------------------------------------------------------------------------


def test_a_newer_request_for_fewer_takes_some_of_the_offered_and_dismisses_the_rest() -> None:
    decision = decided(view_of(2), terms_of(2, target=4), LIMITS, asked=size_request(3), prepared=Prepared(peers(7, 8)))
    assert (decision.view.ids, decision.terms.refused_size) == ((0, 1, 7), 0)


def test_a_newer_request_for_more_waits_for_more_instead_of_calling_itself_refused() -> None:
    decision = decided(view_of(2), terms_of(2, target=4), LIMITS, asked=size_request(6), prepared=Prepared(peers(7, 8)))
    assert decision == Decision(view_of(2), terms_of(2, target=6), prepare=6)


@pytest.mark.parametrize("older", [Prepared(peers(7), missing=(8,)), Prepared(peers(7, 8, 9))])
def test_an_offer_that_was_made_for_an_older_request_is_passed_over_for_a_new_one(older: Prepared) -> None:
    waiting = terms_of(2, target=3) if len(older.ready) == 3 else terms_of(2, target=6)
    decision = decided(view_of(2), waiting, LIMITS, prepared=older)
    assert decision == Decision(view_of(2), waiting, prepare=waiting.target_size)


def test_an_offer_of_a_peer_that_is_in_the_view_by_now_is_passed_over_for_a_new_one() -> None:
    survivors, terms = view_of(3), terms_of(3, target=4)  # one of four was lost after the last of them had joined
    decision = decided(survivors, terms, LIMITS, prepared=Prepared(survivors.peers[-1:]))
    assert decision == Decision(survivors, terms, prepare=4)


def test_an_offer_after_the_request_is_over_is_passed_over_even_beside_a_new_wish() -> None:
    late = Prepared(peers(7, 8))
    assert decided(view_of(2), terms_of(2), LIMITS, prepared=late) == Decision(view_of(2), terms_of(2))
    decision = decided(view_of(2), terms_of(2), LIMITS, asked=size_request(4), prepared=late)
    assert decision == Decision(view_of(2), terms_of(2, target=4), prepare=4)


def test_the_agent_hears_of_a_join_by_the_view_alone_or_it_would_offer_the_same_peers_again() -> None:
    offer = Prepared(peers(7, 8))
    assert decided(view_of(2), terms_of(2, target=4), LIMITS, prepared=offer).prepare is None
    assert decided(view_of(2), terms_of(2, target=4), LIMITS, asked=size_request(3), prepared=offer).prepare is None


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_a_request_beyond_the_limits_goes_to_the_limit_and_is_marked_as_refused() -> None:
    decision = decided(view_of(2), terms_of(2), Limits(1, 4), asked=size_request(9))
    assert (decision.prepare, decision.terms.refused_size) == (4, 9)
    joined = decided(view_of(2), decision.terms, Limits(1, 4), prepared=Prepared(peers(7, 8)))
    assert (joined.view.size, joined.terms.refused_size) == (4, 9)
    shrunk = decided(view_of(3), terms_of(3), Limits(2, 4), asked=size_request(0))
    assert (shrunk.view.size, shrunk.terms.refused_size) == (2, 0)


def test_a_new_request_forgets_what_was_refused_before() -> None:
    refused = Terms(64, 32.0, refused_size=9)
    assert decided(view_of(2), refused, LIMITS, asked=size_request(3)).terms.refused_size == 0


def test_a_fixed_batch_of_three_samples_takes_no_more_than_three_peers() -> None:
    decision = decided(view_of(2), Terms(3, 1.5), LIMITS, asked=size_request(6, "global_batch_size"))
    assert (decision.prepare, decision.terms.refused_size) == (3, 6)


# ---- the batch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "after"),
    [("local_batch_size", Terms(128, 32.0)), ("global_batch_size", Terms(64, 16.0, keep="global_batch_size"))],
)
def test_a_doubled_view_keeps_the_batch_that_the_rule_keeps(keep: Keep, after: Terms) -> None:
    assert grown(2, 4, keep).terms == after


def test_a_batch_that_does_not_divide_is_rounded_as_a_whole_not_per_peer() -> None:
    terms = Terms(100, 100 / 3)
    assert decided(view_of(3), terms, LIMITS, asked=size_request(2)).terms.global_batch_size == 67
    assert decided(view_of(3), terms, LIMITS, asked=size_request(1)).terms.global_batch_size == 33
    assert grown(3, 6, terms=terms).terms.global_batch_size == 200


def test_beyond_its_limit_the_global_batch_stays_and_below_it_each_peer_has_its_share_again() -> None:
    up = replace(size_request(6), max_global_batch=100)
    asked = decided(view_of(2), Terms(64, 32.0), LIMITS, asked=up)
    large = decided(view_of(2), asked.terms, LIMITS, prepared=Prepared(peers(7, 8, 9, 10))).terms
    assert large == Terms(100, 32.0, max_global_batch=100)
    # A peer that goes by name leaves the limit as it is.
    evicted = RescaleRequest(0, "local_batch_size", "rule", 10, leave=Leave((5,), "now"))
    assert decided(view_of(6), large, LIMITS, asked=evicted).terms == large
    down = decided(view_of(6), large, LIMITS, asked=replace(size_request(3), max_global_batch=100))
    assert down.terms == Terms(96, 32.0, max_global_batch=100)


def test_a_batch_that_was_set_beyond_the_limit_of_a_policy_stays_and_grows_no_more() -> None:
    position = RunPosition(steps=10, samples=1000, epoch_samples=0, learning_rate=0.1)
    setting = SettingChange("global_batch_size", 160, "rule", 10)
    large = apply_settings(Terms(100, 32.0, max_global_batch=100), [setting], position, size=5)
    assert large == Terms(160, 32.0, max_global_batch=100)
    # An exchange of peers changes no size.
    exchange = RescaleRequest(5, "local_batch_size", "rule", 10, leave=Leave((4,), "replaced"))
    asked = decided(view_of(5), large, LIMITS, asked=exchange)
    exchanged = decided(view_of(5), asked.terms, LIMITS, prepared=Prepared(peers(7)))
    assert (exchanged.view.ids, exchanged.terms) == ((0, 1, 2, 3, 7), large)
    # Another peer makes no more of it, and a smaller size makes less, from where the limit holds again.
    limited = size_request(6, most=100)
    asked = decided(view_of(5), large, LIMITS, asked=limited)
    assert decided(view_of(5), asked.terms, LIMITS, prepared=Prepared(peers(7))).terms == large
    small = decided(view_of(5), large, LIMITS, asked=replace(limited, size=2)).terms
    assert small == Terms(64, 32.0, max_global_batch=100)
    asked = decided(view_of(2), small, LIMITS, asked=replace(limited, size=4))
    again = decided(view_of(2), asked.terms, LIMITS, prepared=Prepared(peers(7, 8))).terms
    assert again == Terms(100, 32.0, max_global_batch=100)


@pytest.mark.parametrize("keep", Keep.__args__)
def test_a_size_that_names_no_limit_keeps_that_of_the_policy(keep: Keep) -> None:
    limited = Terms(64, 32.0, max_global_batch=100)
    asked = decided(view_of(2), limited, LIMITS, asked=size_request(6, keep))
    grown = decided(view_of(2), asked.terms, LIMITS, prepared=Prepared(peers(7, 8, 9, 10))).terms
    assert (grown.max_global_batch, grown.keep) == (100, keep)
    assert grown.global_batch_size == (100 if keep == "local_batch_size" else 64)


def test_a_rule_without_a_limit_takes_the_one_in_force_away() -> None:
    limited = Terms(64, 32.0, max_global_batch=100)
    asked = decided(view_of(2), limited, LIMITS, asked=size_request(6, most=0))
    grown = decided(view_of(2), asked.terms, LIMITS, prepared=Prepared(peers(7, 8, 9, 10))).terms
    assert grown == Terms(192, 32.0)


def test_a_batch_of_at_most_three_samples_takes_no_more_than_three_peers() -> None:
    decision = decided(view_of(2), Terms(2, 1.0), LIMITS, asked=replace(size_request(6), max_global_batch=3))
    assert (decision.prepare, decision.terms.refused_size) == (3, 6)


sizes = st.lists(st.integers(1, 6), max_size=30)


@given(st.integers(1, 6), st.integers(1, 999), sizes)
def test_no_history_of_rescales_lets_the_batch_drift(size: int, batch: int, history: list[int]) -> None:
    start = Terms(batch * size, float(batch))
    terms = start
    for target in [*history, size]:
        terms = resize(size, target, terms).terms
        assert terms.global_batch_size == batch * target
        size = target
    assert (terms.global_batch_size, terms.batch_per_peer) == (start.global_batch_size, start.batch_per_peer)


def resize(size: int, target: int, terms: Terms, keep: Keep = "local_batch_size") -> Decision:
    if target <= size:
        return decided(view_of(size), terms, LIMITS, asked=size_request(target, keep))
    return grown(size, target, keep, terms)


@given(st.integers(6, 999), st.lists(st.tuples(st.integers(1, 6), st.sampled_from(Keep.__args__)), max_size=20))
def test_whatever_is_kept_every_peer_has_work_and_the_batch_is_per_peer_times_size(
    batch: int, history: list[tuple[int, Keep]]
) -> None:
    size, terms = 6, Terms(batch, batch / 6)
    for target, keep in history:
        before = terms
        decision = resize(size, target, terms, keep)
        size, terms = decision.view.size, decision.terms
        assert terms.global_batch_size >= size
        assert abs(terms.global_batch_size - terms.batch_per_peer * size) <= 0.5
        kept = "batch_per_peer" if keep == "local_batch_size" else "global_batch_size"
        if decision.view.version > 5:
            assert getattr(terms, kept) == getattr(before, kept)


offers = st.builds(
    lambda ready, missing: Prepared(peers(*range(50, 50 + ready)), tuple(range(90, 90 + missing))),
    st.integers(0, 6),
    st.integers(0, 6),
)


@given(
    st.integers(1, 6),
    st.integers(0, 6),
    st.tuples(st.integers(1, 3), st.integers(3, 6)),
    st.none() | st.builds(size_request, st.integers(-3, 12), st.sampled_from(Keep.__args__)),
    st.none() | offers,
)
def test_any_decision_stays_within_the_limits_and_takes_only_who_was_offered(
    size: int, target: int, bounds: tuple[int, int], asked: RescaleRequest | None, offer: Prepared | None
) -> None:
    limits = Limits(*bounds)
    size = limits.clip(size)
    target = 0 if target <= size or target > limits.maximum else target
    view, terms = view_of(size), terms_of(size, target=target)
    decision = decided(view, terms, limits, asked=asked, prepared=offer)
    after = decision.view
    assert limits.minimum <= after.size <= limits.maximum
    assert set(after.ids) <= set(view.ids) | {peer.id for peer in (offer.ready if offer else ())}
    assert after.version == view.version + (after.ids != view.ids)
    assert decision.prepare is None or limits.minimum <= decision.prepare <= limits.maximum
    assert decision.terms.target_size == 0 or decision.terms.target_size > after.size
    assert decision.terms.target_size == 0 or after == view


# ---- peers that leave by name ---------------------------------------------------------------------------------------


def leaving(*ids: int, when: str = "now", size: int = 0) -> RescaleRequest:
    return RescaleRequest(size, "local_batch_size", "rule", 10, leave=Leave(ids, when))


def test_named_peers_leave_at_once_rank_0_included_and_the_batch_follows() -> None:
    decision = decided(view_of(4), terms_of(4), LIMITS, asked=leaving(0, 2))
    assert decision == Decision(View(6, peers(1, 3)), Terms(64, 32.0), prepare=None)


def test_no_more_leave_by_name_than_the_minimum_allows_and_the_rest_is_refused() -> None:
    decision = decided(view_of(3), terms_of(3), Limits(2, 6), asked=leaving(0, 1, 2))
    assert (decision.view.ids, decision.terms.refused_size) == ((1, 2), 0)
    kept = decided(view_of(2), terms_of(2), Limits(2, 6), asked=leaving(1))
    assert (kept.view, kept.terms.refused_size) == (view_of(2), 1)


def test_a_name_that_is_not_in_the_view_changes_nothing() -> None:
    assert decided(view_of(2), terms_of(2), LIMITS, asked=leaving(7)) == Decision(view_of(2), terms_of(2))


def test_a_notice_goes_below_the_minimum_keeps_the_batch_and_has_others_prepared() -> None:
    decision = decided(view_of(2), terms_of(2), Limits(2, 6), asked=leaving(0, when="noticed", size=2))
    assert decision.view.ids == (1,)
    assert decision.terms == Terms(64, 32.0, target_size=2)
    assert decision.prepare == 3, "the agent still counts the one who leaves"
    joined = decided(decision.view, decision.terms, Limits(2, 6), prepared=Prepared(peers(7)))
    assert (joined.view.ids, joined.terms) == ((1, 7), Terms(64, 32.0))


def test_the_last_peer_follows_a_notice_when_another_one_has_come_in_its_place() -> None:
    decision = decided(view_of(1), terms_of(1), LIMITS, asked=leaving(0, when="noticed", size=1))
    assert decision.view == view_of(1)
    assert (decision.terms.leaving, decision.terms.target_size, decision.prepare) == ((0,), 1, 2)


def test_a_notice_to_the_last_peer_cannot_be_followed_when_nobody_comes() -> None:
    decision = decided(view_of(1), terms_of(1), LIMITS, asked=leaving(0, when="noticed", size=0))
    assert decision == Decision(view_of(1), terms_of(1))


def test_peers_to_be_replaced_stay_until_others_have_come_and_then_go_in_one_change() -> None:
    asked = decided(view_of(3), terms_of(3), LIMITS, asked=leaving(0, 2, when="replaced"))
    assert asked.view == view_of(3)
    assert (asked.terms.leaving, asked.terms.target_size, asked.prepare) == ((0, 2), 3, 5)
    swapped = decided(view_of(3), asked.terms, LIMITS, prepared=Prepared(peers(8, 7)))
    assert swapped == Decision(View(6, peers(1, 7, 8)), terms_of(3))


def test_only_as_many_are_replaced_as_have_come() -> None:
    asked = decided(view_of(3), terms_of(3), LIMITS, asked=leaving(0, 2, when="replaced"))
    offer = Prepared(peers(7), missing=(8,), reason="peer 8: ended")
    assert decided(view_of(3), asked.terms, LIMITS, prepared=offer).view.ids == (1, 2, 7)
    nobody = decided(view_of(3), asked.terms, LIMITS, prepared=Prepared((), missing=(7, 8), reason="ended"))
    assert nobody.view == view_of(3)
    assert (nobody.terms.leaving, nobody.terms.target_size) == ((), 0)


def test_a_newer_request_lets_those_stay_who_were_to_be_replaced() -> None:
    asked = decided(view_of(3), terms_of(3), LIMITS, asked=leaving(0, when="replaced"))
    decision = decided(view_of(3), asked.terms, LIMITS, asked=size_request(3))
    assert decision == Decision(view_of(3), terms_of(3), prepare=3)


def test_who_was_to_be_replaced_and_has_died_is_not_waited_for() -> None:
    terms = Terms(64, 32.0, target_size=2, leaving=(9,))
    assert decided(view_of(2), terms, LIMITS, prepared=Prepared()).view == view_of(2)


@given(
    st.integers(1, 6), st.sets(st.integers(0, 7)), st.sampled_from(["now", "noticed", "replaced"]), st.integers(0, 8)
)
def test_whoever_leaves_a_job_keeps_a_peer_and_a_batch(size: int, ids: set[int], when: str, wanted: int) -> None:
    decision = decided(view_of(size), terms_of(size), LIMITS, asked=leaving(*ids, when=when, size=wanted))
    assert 1 <= decision.view.size <= size
    assert set(view_of(size).ids) - set(decision.view.ids) <= ids
    assert decision.terms.global_batch_size >= decision.view.size
    if when == "noticed" and size > 1:
        gone = set(view_of(size).ids) - set(decision.view.ids)
        assert gone == ids & set(view_of(size).ids) or decision.view.size == 1


# ---- a view always keeps a holder -----------------------------------------------------------------------------------


def swapped(size: int, *, keep: Keep = "local_batch_size") -> Decision:
    """All peers of a view have been replaced: those who replace them have just joined."""
    asked = decided(view_of(size), terms_of(size, keep=keep), LIMITS, asked=leaving(*range(size), when="replaced"))
    return decided(view_of(size), asked.terms, LIMITS, prepared=Prepared(peers(*range(50, 50 + size))))


@pytest.mark.parametrize("keep", Keep.__args__)
def test_the_only_peer_stays_until_the_one_in_its_place_holds_the_state(keep: Keep) -> None:
    joined = swapped(1, keep=keep)
    assert (joined.view.ids, joined.terms.departing, joined.prepare) == ((0, 50), (0,), None)
    assert (joined.terms.target_size, joined.terms.global_batch_size, joined.terms.batch_per_peer) == (0, 32, 32.0)
    gone = decided(joined.view, joined.terms, LIMITS)
    assert gone == Decision(View(7, peers(50)), terms_of(1, keep=keep))


def test_of_several_that_are_all_replaced_the_lowest_rank_stays_until_the_next_barrier() -> None:
    joined = swapped(3)
    assert (joined.view.ids, joined.terms) == ((0, 50, 51, 52), Terms(96, 32.0, departing=(0,)))
    assert decided(joined.view, joined.terms, LIMITS) == Decision(View(7, peers(50, 51, 52)), terms_of(3))


def test_what_a_barrier_is_asked_for_is_decided_about_those_who_stay() -> None:
    joined = swapped(2)
    grown = decided(joined.view, joined.terms, LIMITS, asked=size_request(4))
    assert grown == Decision(View(7, peers(50, 51)), Terms(64, 32.0, target_size=4), prepare=5)
    shrunk = decided(joined.view, joined.terms, LIMITS, asked=size_request(1))
    assert shrunk == Decision(View(7, peers(50)), Terms(32, 32.0))
    told_again = decided(joined.view, joined.terms, LIMITS, asked=leaving(0, when="replaced", size=2))
    assert told_again == Decision(View(7, peers(50, 51)), terms_of(2))
    noticed = decided(joined.view, joined.terms, LIMITS, asked=leaving(0, when="noticed", size=3))
    assert noticed == Decision(View(7, peers(50, 51)), terms_of(2))


def test_who_was_about_to_leave_stays_on_when_the_one_in_its_place_is_lost_and_goes_when_another_has_come() -> None:
    alone, terms = View(9, peers(0)), Terms(32, 32.0, target_size=2, departing=(0,))
    assert decided(alone, terms, LIMITS).view == alone
    joined = decided(alone, terms, LIMITS, prepared=Prepared(peers(51)))
    assert (joined.view.ids, joined.terms) == ((0, 51), Terms(32, 32.0, departing=(0,)))
    assert decided(joined.view, joined.terms, LIMITS) == Decision(View(11, peers(51)), terms_of(1))
    nobody = decided(alone, terms, LIMITS, prepared=Prepared((), missing=(51,), reason="ended"))
    assert (nobody.view, nobody.terms.departing, nobody.terms.refused_size) == (alone, (), 2)


def test_who_was_about_to_leave_and_died_is_not_replaced_once_more() -> None:
    survivor, terms = View(9, peers(50)), Terms(32, 32.0, target_size=2, departing=(0,))
    decision = decided(survivor, terms, LIMITS, prepared=Prepared(peers(51)))
    assert (decision.view, decision.terms.target_size, decision.prepare) == (survivor, 0, 1)


def test_those_who_replace_the_lost_still_come_when_somebody_is_to_be_replaced() -> None:
    terms = Terms(64, 32.0, target_size=2)  # of two peers one was lost, and another is on its way
    asked = decided(view_of(1), terms, LIMITS, asked=leaving(0, when="replaced", size=2))
    assert (asked.terms.leaving, asked.terms.target_size, asked.prepare) == ((0,), 2, 3)
    joined = decided(view_of(1), asked.terms, LIMITS, prepared=Prepared(peers(50, 51)))
    assert (joined.view.ids, joined.terms.departing) == ((0, 50, 51), (0,))


def test_an_offer_beside_a_request_that_cannot_be_followed_is_not_lost() -> None:
    under_way = terms_of(2, target=3)
    decision = decided(view_of(2), under_way, Limits(2, 6), asked=leaving(1), prepared=Prepared(peers(50)))
    assert decision.view.ids == (0, 1, 50)


@given(st.data(), st.integers(1, 4))
def test_whatever_happens_each_view_has_somebody_of_the_one_before_it(data: st.DataObject, size: int) -> None:
    view, terms, spare = view_of(size), terms_of(size), 50
    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(["size", "now", "noticed", "replaced", None]))
        named = tuple(data.draw(st.sets(st.sampled_from(view.ids))))
        asked = None if kind is None else size_request(data.draw(st.integers(0, 6)))
        if kind not in (None, "size"):
            asked = leaving(*named, when=kind, size=data.draw(st.integers(0, 6)))
        offer = None
        if terms.target_size and data.draw(st.booleans()):
            coming = terms.target_size - view.size + len(terms.leaving)
            ready = data.draw(st.integers(0, max(0, coming)))
            offer = Prepared(peers(*range(spare, spare + ready)), tuple(range(90, 90 + coming - ready)))
            spare += ready
        decision = decided(view, terms, LIMITS, asked=asked, prepared=offer)
        assert set(decision.view.ids) & set(view.ids), "nobody would hold the state"
        assert decision.view.version == view.version + (decision.view.ids != view.ids)
        assert decision.terms.global_batch_size > 0
        assert not set(decision.terms.departing) - set(decision.view.ids)
        view, terms = decision.view, decision.terms


# ---- a size and peers by name in one request ------------------------------------------------------------------------


def together(target: int | None, *named: RescaleRequest, keep: Keep = "local_batch_size") -> Requests:
    return named if target is None else (size_request(target, keep), *named)


@pytest.mark.parametrize(
    ("asked", "ids", "target", "leaving", "prepare"),
    [
        # of four: a size below, and one to replace: it is among those who leave
        (together(3, leaving(1, when="replaced")), (0, 2, 3), 0, (), None),
        (together(2, leaving(1, when="replaced")), (0, 2), 0, (), None),
        (together(3, leaving(1, 2, when="replaced")), (0, 2, 3), 3, (2,), 5),
        # the same size, or more: those who come take its place
        (together(4, leaving(1, when="replaced")), (0, 1, 2, 3), 4, (1,), 5),
        (together(6, leaving(1, when="replaced")), (0, 1, 2, 3), 6, (1,), 7),
        # one to evict goes at once, and the size is what was asked for
        (together(3, leaving(1)), (0, 2, 3), 0, (), None),
        (together(2, leaving(1)), (0, 2), 0, (), None),
        (together(6, leaving(1)), (0, 2, 3), 6, (), 7),
        # two rules that name peers: all of them
        (together(None, leaving(1), leaving(2)), (0, 3), 0, (), None),
        (together(None, leaving(1), leaving(2, when="replaced")), (0, 2, 3), 3, (2,), 5),
        (together(None, leaving(1), leaving(1, when="replaced")), (0, 2, 3), 0, (), None),
        # a notice beside a size
        (together(4, leaving(1, when="noticed", size=4)), (0, 2, 3), 4, (), 5),
        (together(3, leaving(1, when="noticed", size=4)), (0, 2, 3), 0, (), None),
    ],
)
def test_who_is_named_goes_first_and_the_others_make_up_the_size(
    asked: Requests, ids: tuple[int, ...], target: int, leaving: tuple[int, ...], prepare: int | None
) -> None:
    decision = decided(view_of(4), terms_of(4), LIMITS, asked=asked)
    assert decision.view.ids == ids
    assert (decision.terms.target_size, decision.terms.leaving) == (target, leaving)
    assert decision.prepare == prepare


def test_those_who_come_for_a_size_and_for_an_exchange_come_in_one_change() -> None:
    asked = decided(view_of(3), terms_of(3), LIMITS, asked=together(4, leaving(0, when="replaced")))
    swapped = decided(view_of(3), asked.terms, LIMITS, prepared=Prepared(peers(7, 8)))
    assert swapped == Decision(View(6, peers(1, 2, 7, 8)), terms_of(4))


def test_an_evicted_peer_that_the_minimum_holds_leaves_when_the_size_brings_another() -> None:
    asked = decided(view_of(2), terms_of(2), Limits(2, 6), asked=together(3, leaving(0)))
    assert (asked.view, asked.terms.leaving, asked.prepare) == (view_of(2), (0,), 4)


def test_the_batch_that_stays_is_that_of_the_size() -> None:
    decision = decided(view_of(4), terms_of(4), LIMITS, asked=together(2, leaving(0), keep="global_batch_size"))
    assert (decision.view.ids, decision.terms) == ((1, 2), Terms(128, 64.0, keep="global_batch_size"))


def test_the_batch_stays_while_others_come_for_one_that_was_taken_away_also_beside_a_size() -> None:
    decision = decided(view_of(4), terms_of(4), LIMITS, asked=together(5, leaving(1, when="noticed", size=4)))
    assert (decision.view.size, decision.terms.global_batch_size) == (3, 128)
    joined = decided(decision.view, decision.terms, LIMITS, prepared=Prepared(peers(7, 8)))
    assert joined.terms == terms_of(5)


def test_a_notice_while_another_is_exchanged_leaves_the_exchange_as_it_is() -> None:
    asked = decided(view_of(4), terms_of(4), LIMITS, asked=leaving(1, when="replaced"))
    people = 5  # that the agent counts: four, and one that is getting ready
    noticed = decided(view_of(4), asked.terms, LIMITS, asked=leaving(2, when="noticed", size=people))
    assert (noticed.view.ids, noticed.terms.target_size, noticed.terms.leaving) == ((0, 1, 3), 4, (1,))
    assert noticed.prepare == 6, "one for each of both, beside the four that it still counts"
