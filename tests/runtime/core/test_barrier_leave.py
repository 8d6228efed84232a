"""What a barrier decides about peers that leave: by name or by a shrink, in which order, and how many are replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.barrier import Decision, JoinerOffer, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, Keep, Leave, When
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View
from kungfu.runtime.settings import Limits
from tests.runtime.core.deciding import LIMITS, Requests, decided, leaving, peers, size_request, terms_of, view_of


def test_named_peers_leave_at_once_rank_0_included_as_far_as_the_minimum_allows() -> None:
    decision = decided(view_of(4), terms_of(4), asked=leaving(0, 2))
    assert decision == Decision(View(6, peers(1, 3)), Terms(64, 32.0), prepare=None), "the batch follows"
    decision = decided(view_of(3), terms_of(3), Limits(2, 6), asked=leaving(0, 1, 2))
    assert (decision.view.ids, decision.terms.refused_size) == ((1, 2), 0)
    kept = decided(view_of(2), terms_of(2), Limits(2, 6), asked=leaving(1))
    assert (kept.view, kept.terms.refused_size) == (view_of(2), 1)
    assert decided(view_of(2), terms_of(2), asked=leaving(7)) == Decision(view_of(2), terms_of(2)), "not in the view"


def test_a_notice_goes_below_the_minimum_keeps_the_batch_and_has_others_prepared() -> None:
    decision = decided(view_of(2), terms_of(2), Limits(2, 6), asked=leaving(0, when="noticed", size=2))
    assert decision.view.ids == (1,)
    assert decision.terms == Terms(64, 32.0, target_size=2)
    assert decision.prepare == 3, "the agent still counts the one who leaves"
    joined = decided(decision.view, decision.terms, Limits(2, 6), offer=JoinerOffer(peers(7)))
    assert (joined.view.ids, joined.terms) == ((1, 7), Terms(64, 32.0))


def test_the_last_peer_follows_a_notice_when_another_one_has_come_in_its_place() -> None:
    decision = decided(view_of(1), terms_of(1), asked=leaving(0, when="noticed", size=1))
    assert decision.view == view_of(1)
    assert (decision.terms.leaving, decision.terms.target_size, decision.prepare) == ((0,), 1, 2)
    nobody_comes = decided(view_of(1), terms_of(1), asked=leaving(0, when="noticed", size=0))
    assert nobody_comes == Decision(view_of(1), terms_of(1))


def test_peers_to_be_replaced_stay_until_others_have_come_and_then_go_in_one_change() -> None:
    asked = decided(view_of(3), terms_of(3), asked=leaving(0, 2, when="replaced"))
    assert asked.view == view_of(3)
    assert (asked.terms.leaving, asked.terms.target_size, asked.prepare) == ((0, 2), 3, 5)
    swapped = decided(view_of(3), asked.terms, offer=JoinerOffer(peers(8, 7)))
    assert swapped == Decision(View(6, peers(1, 7, 8)), terms_of(3))


def test_who_was_to_be_replaced_and_has_died_is_not_waited_for() -> None:
    terms = Terms(64, 32.0, target_size=2, leaving=(9,))
    assert decided(view_of(2), terms, offer=JoinerOffer()).view == view_of(2)


@given(
    st.integers(1, 6), st.sets(st.integers(0, 7)), st.sampled_from(["now", "noticed", "replaced"]), st.integers(0, 8)
)
def test_whoever_leaves_a_job_keeps_a_peer_and_a_batch(size: int, ids: set[int], when: str, wanted: int) -> None:
    decision = decided(view_of(size), terms_of(size), asked=leaving(*ids, when=when, size=wanted))
    assert 1 <= decision.view.size <= size
    assert set(view_of(size).ids) - set(decision.view.ids) <= ids
    assert decision.terms.global_batch_size >= decision.view.size
    if when == "noticed" and size > 1:
        gone = set(view_of(size).ids) - set(decision.view.ids)
        assert gone == ids & set(view_of(size).ids) or decision.view.size == 1


def swapped(size: int, *, keep: Keep = "local_batch_size") -> Decision:
    """All peers of a view have been replaced: those who replace them have just joined."""
    asked = decided(view_of(size), terms_of(size, keep=keep), asked=leaving(*range(size), when="replaced"))
    return decided(view_of(size), asked.terms, offer=JoinerOffer(peers(*range(50, 50 + size))))


@pytest.mark.parametrize("keep", Keep.__args__)
def test_the_only_peer_stays_until_the_one_in_its_place_holds_the_state(keep: Keep) -> None:
    joined = swapped(1, keep=keep)
    assert (joined.view.ids, joined.terms.departing, joined.prepare) == ((0, 50), (0,), None)
    assert (joined.terms.target_size, joined.terms.global_batch_size, joined.terms.batch_per_peer) == (0, 32, 32.0)
    gone = decided(joined.view, joined.terms)
    assert gone == Decision(View(7, peers(50)), terms_of(1, keep=keep))


def test_the_lowest_of_several_replaced_ranks_stays_until_the_next_barrier() -> None:
    joined = swapped(3)
    assert (joined.view.ids, joined.terms) == ((0, 50, 51, 52), Terms(96, 32.0, departing=(0,)))
    assert decided(joined.view, joined.terms) == Decision(View(7, peers(50, 51, 52)), terms_of(3))


def test_what_a_barrier_is_asked_for_is_decided_about_those_who_stay() -> None:
    joined = swapped(2)
    grown = decided(joined.view, joined.terms, asked=size_request(4))
    assert grown == Decision(View(7, peers(50, 51)), Terms(64, 32.0, target_size=4), prepare=5)
    shrunk = decided(joined.view, joined.terms, asked=size_request(1))
    assert shrunk == Decision(View(7, peers(50)), Terms(32, 32.0))
    told_again = decided(joined.view, joined.terms, asked=leaving(0, when="replaced", size=2))
    assert told_again == Decision(View(7, peers(50, 51)), terms_of(2))
    noticed = decided(joined.view, joined.terms, asked=leaving(0, when="noticed", size=3))
    assert noticed == Decision(View(7, peers(50, 51)), terms_of(2))


def test_a_departing_peer_stays_if_the_one_in_its_place_is_lost() -> None:
    alone, terms = View(9, peers(0)), Terms(32, 32.0, target_size=2, departing=(0,))
    assert decided(alone, terms).view == alone
    joined = decided(alone, terms, offer=JoinerOffer(peers(51)))
    assert (joined.view.ids, joined.terms) == ((0, 51), Terms(32, 32.0, departing=(0,)))
    assert decided(joined.view, joined.terms) == Decision(View(11, peers(51)), terms_of(1))
    nobody = decided(alone, terms, offer=JoinerOffer((), missing=(51,), reason="ended"))
    assert (nobody.view, nobody.terms.departing, nobody.terms.refused_size) == (alone, (), 2)
    survivor = View(9, peers(50))  # the departing one was lost: it is not replaced once more
    decision = decided(survivor, terms, offer=JoinerOffer(peers(51)))
    assert (decision.view, decision.terms.target_size, decision.prepare) == (survivor, 0, 1)


def test_those_who_replace_the_lost_still_come_when_somebody_is_to_be_replaced() -> None:
    terms = Terms(64, 32.0, target_size=2)  # of two peers one was lost, and another is on its way
    asked = decided(view_of(1), terms, asked=leaving(0, when="replaced", size=2))
    assert (asked.terms.leaving, asked.terms.target_size, asked.prepare) == ((0,), 2, 3)
    joined = decided(view_of(1), asked.terms, offer=JoinerOffer(peers(50, 51)))
    assert (joined.view.ids, joined.terms.departing) == ((0, 50, 51), (0,))


def test_an_offer_beside_a_request_that_cannot_be_followed_is_not_lost() -> None:
    under_way = terms_of(2, target=3)
    decision = decided(view_of(2), under_way, Limits(2, 6), asked=leaving(1), offer=JoinerOffer(peers(50)))
    assert decision.view.ids == (0, 1, 50)


def together(target: int | None, *named: Asked, keep: Keep = "local_batch_size") -> Requests:
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
    decision = decided(view_of(4), terms_of(4), asked=asked)
    assert decision.view.ids == ids
    assert (decision.terms.target_size, decision.terms.leaving) == (target, leaving)
    assert decision.prepare == prepare


def test_an_evicted_peer_that_the_minimum_holds_leaves_when_the_size_brings_another() -> None:
    asked = decided(view_of(2), terms_of(2), Limits(2, 6), asked=together(3, leaving(0)))
    assert (asked.view, asked.terms.leaving, asked.prepare) == (view_of(2), (0,), 4)


def test_the_batch_that_stays_is_that_of_the_size() -> None:
    decision = decided(view_of(4), terms_of(4), asked=together(2, leaving(0), keep="global_batch_size"))
    assert (decision.view.ids, decision.terms) == ((1, 2), Terms(128, 64.0, keep="global_batch_size"))


def test_the_batch_stays_while_others_come_for_a_peer_that_was_taken_away() -> None:
    decision = decided(view_of(4), terms_of(4), asked=together(5, leaving(1, when="noticed", size=4)))
    assert (decision.view.size, decision.terms.global_batch_size) == (3, 128)
    joined = decided(decision.view, decision.terms, offer=JoinerOffer(peers(7, 8)))
    assert joined.terms == terms_of(5)


# ---- the order in which a shrink removes peers -----------------------------------------------------------------------

SPEEDS = {0: 0.6, 1: 1.0, 2: 0.7, 3: 1.0}


@pytest.mark.parametrize(
    ("asked", "speeds", "ids", "slow"),
    [
        # nothing is measured: the newest go, as ever
        (size_request(2), {}, (0, 1), {}),
        # rank 0 is the straggler
        (size_request(2), {0: 0.51, 1: 1.0, 2: 1.0, 3: 1.0}, (1, 2), {0: 0.51}),
        (size_request(2), {0: 0.7, 1: 0.5, 2: 1.0, 3: 1.2}, (2, 3), {1: 0.5, 0: 0.7}),
        # below the least size nobody else leaves
        (size_request(0), {1: 0.5}, (0,), {1: 0.5}),
        # named peers leave before slow ones, and do not count as slow
        (together(3, leaving(3, when="replaced")), SPEEDS, (0, 1, 2), {}),
        (together(2, leaving(3, when="replaced")), SPEEDS, (1, 2), {0: 0.6}),
        (together(2, leaving(2)), SPEEDS, (1, 3), {0: 0.6}),
        (together(2, leaving(1, when="noticed")), SPEEDS, (2, 3), {0: 0.6}),
        # without a request nobody leaves for being slow
        ((), {0: 0.1, 1: 0.1}, (0, 1, 2, 3), {}),
    ],
)
def test_named_and_then_slow_peers_go_first(
    asked: Asked | Requests, speeds: dict[int, float], ids: tuple[int, ...], slow: dict[int, float]
) -> None:
    decision = decided(view_of(4), terms_of(4), asked=asked, speeds=speeds)
    assert decision.view.ids == ids
    assert (decision.slow, list(decision.slow)) == (slow, list(slow))
    assert decision.terms.global_batch_size == 32 * len(ids)


def test_a_shrink_from_outside_lets_slow_peers_go_first_too() -> None:
    decision = decided(view_of(4), terms_of(4), outside=size_request(3), speeds={1: 0.5})
    assert (decision.view.ids, decision.slow) == ((0, 2, 3), {1: 0.5})


def test_those_under_way_are_dismissed_before_anybody_leaves() -> None:
    under_way, offer = terms_of(4, target=6), JoinerOffer(peers(8, 9))
    dismissed = decided(view_of(4), under_way, asked=size_request(4), speeds={1: 0.5}, offer=offer)
    assert (dismissed.view, dismissed.prepare, dismissed.slow) == (view_of(4), 4, {})
    fewer = decided(view_of(4), under_way, asked=size_request(5), speeds={1: 0.5}, offer=offer)
    assert (fewer.view.ids, fewer.slow) == ((0, 1, 2, 3, 8), {})


def test_a_slow_peer_whose_replacement_has_come_left_for_it_and_not_by_a_shrink() -> None:
    terms = replace(terms_of(4, target=4), leaving=(1,))
    decision = decided(view_of(4), terms, speeds={1: 0.5}, offer=JoinerOffer(peers(9)))
    assert (decision.view.ids, decision.slow) == ((0, 2, 3, 9), {})
    # It was to be replaced, and the job shrinks before anybody has come.
    shrunk = decided(view_of(4), terms, asked=size_request(3), speeds={1: 0.5})
    assert (shrunk.view.ids, shrunk.slow, shrunk.prepare) == ((0, 2, 3), {1: 0.5}, 3)


def test_a_peer_that_stays_until_others_hold_the_state_is_no_straggler_that_left() -> None:
    terms = Terms(96, 32.0, departing=(0,))
    decision = decided(view_of(4), terms, asked=size_request(2), speeds={0: 0.3, 2: 0.5})
    assert (decision.view.ids, decision.slow) == ((1, 3), {2: 0.5})


@given(
    st.integers(1, 6),
    st.integers(0, 6),
    st.dictionaries(st.integers(0, 7), st.floats()),
    st.sets(st.integers(0, 6)),
    st.sampled_from(When.__args__),
)
def test_whatever_the_speeds_as_many_leave_and_whoever_stays_keeps_its_place(
    size: int, target: int, speeds: dict[int, float], named: set[int], when: When
) -> None:
    asked = together(target, *([leaving(*sorted(named), when=when)] if named else []))
    by_speed, by_age = (decided(view_of(size), terms_of(size), asked=asked, speeds=one) for one in (speeds, {}))
    assert by_speed.view.size == by_age.view.size
    assert by_speed.terms.global_batch_size == by_age.terms.global_batch_size
    assert list(by_speed.view.ids) == sorted(by_speed.view.ids)
    assert set(by_speed.slow) <= set(view_of(size).ids) - set(by_speed.view.ids) - named
    assert by_age.slow == {}


# ---- the number of replaced peers ------------------------------------------------------------------------------------


def replaced(*ids: int) -> Asked:
    return leaving(*ids, when="replaced")


def held(before: Decision, *asked: Asked, offer: JoinerOffer | None = None) -> Decision:
    """The barrier after a decision."""
    return decide(BarrierInput(before.view, before.terms, LIMITS, requests=asked, offer=offer))


def start(size: int, *, replaced: int = 0) -> Decision:
    return Decision(view_of(size), replace(terms_of(size), replaced_peers=replaced))


def offered(asked: Decision, *, ready: int, missing: int = 0) -> Decision:
    """The peers that were asked for are offered."""
    return held(asked, offer=JoinerOffer(peers(*range(50, 50 + ready)), tuple(range(90, 90 + missing))))


def counts(*decisions: Decision) -> list[int]:
    return [one.terms.replaced_peers for one in decisions]


MOVE = Asked(Leave((1,), "replaced", 2, host=0), "kungfu migrate 1 a", id="r")
NOTICE = Asked(Leave((1,), "noticed", 3, "local_batch_size"), "notice", 10)


@pytest.mark.parametrize(
    ("size", "requests", "ready", "missing", "ids", "count"),
    [
        (3, [replaced(0, 2)], 2, 0, (1, 50, 51), 2),
        (3, [replaced(0, 2)], 1, 1, (1, 2, 50), 1),  # only those that have come count
        (3, [replaced(0, 2)], 0, 2, (0, 1, 2), 0),
        (2, [size_request(4)], 2, 0, (0, 1, 50, 51), 0),  # a change of the size replaces nobody
        (3, [size_request(4), replaced(0)], 2, 0, (1, 2, 50, 51), 1),
        (3, [size_request(4), leaving(0)], 2, 0, (1, 2, 50, 51), 0),  # the job was smaller before they came
        (2, [replaced(0, 1)], 2, 0, (0, 50, 51), 2),  # one stays for another barrier, and counts once
        (2, [MOVE], 1, 0, (0, 50), 1),  # from outside
        (3, [NOTICE], 1, 0, (0, 2, 50), 0),  # makes the job smaller
    ],
)
def test_each_peer_that_is_replaced_counts_once_its_replacement_joins(
    size: int, requests: list[Asked], ready: int, missing: int, ids: tuple[int, ...], count: int
) -> None:
    asked = held(start(size, replaced=4), *requests)
    done = offered(asked, ready=ready, missing=missing)
    assert done.view.ids == ids
    assert counts(asked, done, held(done), held(done, size_request(1))) == [4, *[4 + count] * 3]


def test_those_who_come_for_lost_peers_replace_nobody() -> None:
    # Of three peers one was lost, and the survivors wait for another one.
    survivors = Decision(View(7, peers(0, 2)), Terms(96, 48.0, target_size=3, replaced_peers=2))
    assert counts(offered(survivors, ready=1)) == [2]
    # An exchange was under way: the newcomer that it asked for comes for the lost peer.
    exchanging = held(start(3, replaced=2), replaced(1))
    lost = replace(exchanging, view=View(7, peers(0, 1)), terms=replace(exchanging.terms, leaving=()))
    assert counts(offered(lost, ready=1)) == [2]


@given(st.data(), st.integers(1, 4))
def test_in_any_history_a_view_keeps_a_holder_and_the_replaced_are_counted(data: st.DataObject, size: int) -> None:
    now, spare = start(size), 50
    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(["size", "now", "noticed", "replaced", None]))
        named, wanted = sorted(data.draw(st.sets(st.sampled_from(now.view.ids)))), data.draw(st.integers(0, 6))
        asked = size_request(wanted) if kind == "size" else leaving(*named, when=kind, size=wanted)
        offer, coming = None, now.terms.target_size - now.view.size + len(now.terms.leaving)
        if now.terms.target_size and data.draw(st.booleans()):
            ready = data.draw(st.integers(0, max(0, coming)))
            offer = JoinerOffer(peers(*range(spare, spare + ready)), tuple(range(90, 90 + coming - ready)))
            spare += ready
        after = held(now, *([] if kind is None else [asked]), offer=offer)
        assert set(after.view.ids) & set(now.view.ids), "nobody would hold the state"
        assert after.view.version == now.view.version + (after.view.ids != now.view.ids)
        assert after.terms.global_batch_size > 0
        assert not set(after.terms.departing) - set(after.view.ids)
        more = after.terms.replaced_peers - now.terms.replaced_peers
        new = set(after.view.ids) - set(now.view.ids)
        assert 0 <= more <= len(new)
        if after.view.size - len(after.terms.departing) == now.view.size - len(now.terms.departing):
            assert more == len(new)
        now = after
