"""What a barrier decides: joiners that are offered, the arithmetic of the batch, and requests made together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.barrier import Decision, JoinerOffer, apply_settings, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, Keep, Leave, Resize, SetBatch, StopTraining, When, merge
from kungfu.runtime.core.terms import RunPosition, Terms, meant_size
from kungfu.runtime.settings import Limits
from tests.runtime.core.deciding import LIMITS, admitted, decided, leaving, peers, size_request, terms_of, view_of


def grown(size: int, target: int, keep: Keep = "local_batch_size", terms: Terms | None = None) -> Decision:
    return admitted(size, terms or terms_of(size), size_request(target, keep), *range(100, 100 + target - size))


def test_those_who_are_there_join_and_the_target_is_marked_as_refused() -> None:
    offer = JoinerOffer(peers(7), missing=(8,), reason="peer 8: ended")
    decision = decided(view_of(2), terms_of(2, target=4), offer=offer)
    assert decision.view.ids == (0, 1, 7)
    assert decision.terms == Terms(96, 32.0, target_size=0, refused_size=4)


def test_a_newer_request_for_more_waits_for_more_instead_of_calling_itself_refused() -> None:
    decision = decided(view_of(2), terms_of(2, target=4), asked=size_request(6), offer=JoinerOffer(peers(7, 8)))
    assert decision == Decision(view_of(2), terms_of(2, target=6), prepare=6)


@pytest.mark.parametrize(
    ("terms", "offer"),
    [
        # made for an older request
        (terms_of(2, target=6), JoinerOffer(peers(7), missing=(8,))),
        (terms_of(2, target=3), JoinerOffer(peers(7, 8, 9))),
        # of a peer that is in the view by now: a peer was lost after the last joiner had come
        (terms_of(2, target=3), JoinerOffer(peers(1))),
    ],
)
def test_an_outdated_offer_is_passed_over_for_a_new_one(terms: Terms, offer: JoinerOffer) -> None:
    assert decided(view_of(2), terms, offer=offer) == Decision(view_of(2), terms, prepare=terms.target_size)


def test_an_offer_after_the_request_is_over_is_passed_over_even_beside_a_new_request() -> None:
    late = JoinerOffer(peers(7, 8))
    assert decided(view_of(2), terms_of(2), offer=late) == Decision(view_of(2), terms_of(2))
    decision = decided(view_of(2), terms_of(2), asked=size_request(4), offer=late)
    assert decision == Decision(view_of(2), terms_of(2, target=4), prepare=4)


def test_the_agent_hears_of_a_join_by_the_view_alone() -> None:
    offer = JoinerOffer(peers(7, 8))
    assert decided(view_of(2), terms_of(2, target=4), offer=offer).prepare is None
    assert decided(view_of(2), terms_of(2, target=4), asked=size_request(3), offer=offer).prepare is None


def test_a_request_beyond_the_limits_goes_to_the_limit_and_is_marked_as_refused() -> None:
    decision = decided(view_of(2), terms_of(2), Limits(1, 4), asked=size_request(9))
    assert (decision.prepare, decision.terms.refused_size) == (4, 9)
    joined = decided(view_of(2), decision.terms, Limits(1, 4), offer=JoinerOffer(peers(7, 8)))
    assert (joined.view.size, joined.terms.refused_size) == (4, 9)
    shrunk = decided(view_of(3), terms_of(3), Limits(2, 4), asked=size_request(0))
    assert (shrunk.view.size, shrunk.terms.refused_size) == (2, 0)


def test_a_new_request_forgets_what_was_refused_before() -> None:
    refused = Terms(64, 32.0, refused_size=9)
    assert decided(view_of(2), refused, asked=size_request(3)).terms.refused_size == 0


def test_a_batch_of_three_samples_that_stays_or_is_the_most_takes_three_peers() -> None:
    for samples, asked in ((3, size_request(6, "global_batch_size")), (2, size_request(6, most=3))):
        decision = decided(view_of(2), Terms(samples, samples / 2), asked=asked)
        assert (decision.prepare, decision.terms.refused_size) == (3, 6)


@pytest.mark.parametrize(
    ("keep", "after"),
    [("local_batch_size", Terms(128, 32.0)), ("global_batch_size", Terms(64, 16.0, keep="global_batch_size"))],
)
def test_a_doubled_view_keeps_the_batch_that_the_rule_keeps(keep: Keep, after: Terms) -> None:
    assert grown(2, 4, keep).terms == after


def test_a_batch_that_does_not_divide_is_rounded_as_a_whole_not_per_peer() -> None:
    terms = Terms(100, 100 / 3)
    assert decided(view_of(3), terms, asked=size_request(2)).terms.global_batch_size == 67
    assert decided(view_of(3), terms, asked=size_request(1)).terms.global_batch_size == 33
    assert grown(3, 6, terms=terms).terms.global_batch_size == 200


def test_beyond_its_limit_the_global_batch_stays() -> None:
    up = size_request(6, most=100)
    large = admitted(2, Terms(64, 32.0), up, 7, 8, 9, 10).terms
    assert large == Terms(100, 32.0, max_global_batch=100)
    # A peer that goes by name leaves the limit as it is.
    evicted = Asked(Leave((5,), "now", 0, "local_batch_size"), "rule", 10)
    assert decided(view_of(6), large, asked=evicted).terms == large
    down = decided(view_of(6), large, asked=size_request(3, most=100))
    assert down.terms == Terms(96, 32.0, max_global_batch=100)


def test_a_batch_that_was_set_beyond_the_limit_of_a_policy_stays_and_grows_no_more() -> None:
    position = RunPosition(steps=10, samples=1000, epoch_samples=0, learning_rate=0.1)
    setting = Asked(SetBatch(160), "rule", 10)
    large = apply_settings(Terms(100, 32.0, max_global_batch=100), [setting], position, size=5)
    assert large == Terms(160, 32.0, max_global_batch=100)
    # An exchange of peers changes no size.
    exchange = Asked(Leave((4,), "replaced", 5, "local_batch_size"), "rule", 10)
    exchanged = admitted(5, large, exchange, 7)
    assert (exchanged.view.ids, exchanged.terms) == ((0, 1, 2, 3, 7), large)
    # Another peer makes no more of it, and a smaller size makes less, from where the limit holds again.
    assert admitted(5, large, size_request(6, most=100), 7).terms == large
    small = decided(view_of(5), large, asked=size_request(2, most=100)).terms
    assert small == Terms(64, 32.0, max_global_batch=100)
    assert admitted(2, small, size_request(4, most=100), 7, 8).terms == Terms(100, 32.0, max_global_batch=100)


@pytest.mark.parametrize(
    ("request_", "after"),
    [
        (size_request(6), Terms(100, 32.0, max_global_batch=100)),
        (size_request(6, "global_batch_size"), Terms(64, 64 / 6, keep="global_batch_size", max_global_batch=100)),
        (size_request(6, most=0), Terms(192, 32.0)),  # without a limit
    ],
)
def test_a_size_that_names_no_limit_keeps_that_of_the_policy(request_: Asked, after: Terms) -> None:
    assert admitted(2, Terms(64, 32.0, max_global_batch=100), request_, 7, 8, 9, 10).terms == after


def test_a_policy_takes_up_the_share_that_a_command_has_put_aside() -> None:
    """Grown by a policy, shrunk by a command, grown again: 64, 128, 128, and not 256 but 128."""
    grows, by_hand = size_request(2), size_request(1, "global_batch_size")
    two = grown(1, 2, terms=Terms(64, 64.0))
    assert (two.terms.global_batch_size, two.terms.policy_share) == (128, 0.0)
    one = decided(two.view, two.terms, outside=by_hand)
    assert (one.terms.global_batch_size, one.terms.batch_per_peer, one.terms.policy_share) == (128, 128.0, 64.0)
    again = decided(one.view, one.terms, asked=grows)
    assert again.terms.global_batch_size == 128, "it waits for the joiner"
    joined = decided(one.view, again.terms, offer=JoinerOffer(peers(9)))
    assert (joined.terms.global_batch_size, joined.terms.batch_per_peer, joined.terms.policy_share) == (128, 64.0, 0.0)
    # Nobody came: a command that keeps the local batch keeps the one that the peers have.
    nobody = decided(one.view, again.terms, offer=JoinerOffer((), missing=(9,)))
    local = decided(one.view, nobody.terms, outside=size_request(2))
    assert decided(one.view, local.terms, offer=JoinerOffer(peers(9))).terms.global_batch_size == 256


def test_several_commands_put_the_share_of_the_policy_aside_once() -> None:
    terms = Terms(256, 64.0)
    for size in (2, 3, 1):
        view = view_of(4 if size == 2 else 3)
        asked = decided(view, terms, outside=size_request(size, "global_batch_size"))
        terms = replace(asked.terms, target_size=0)
    assert (terms.batch_per_peer, terms.policy_share) == (256.0, 64.0)
    assert decided(view_of(3), terms, asked=leaving(1)).terms.global_batch_size == 128, "a rule evicts"
    exchanged = decided(view_of(1), replace(terms, target_size=1, leaving=(0,)), LIMITS, offer=JoinerOffer(peers(9)))
    assert exchanged.terms.policy_share == 64.0, "an exchange of peers is no rescale"


def test_a_batch_that_a_rule_sets_is_what_later_sizes_go_by() -> None:
    position = RunPosition(steps=10, samples=1000, epoch_samples=0, learning_rate=0.1)
    aside = Terms(128, 128.0, policy_share=64.0, base_batch=64, base_size=1)
    set_ = apply_settings(aside, [Asked(SetBatch(96), "rule", 10)], position, size=1)
    assert set_ == Terms(96, 96.0)


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
        return decided(view_of(size), terms, asked=size_request(target, keep))
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
    lambda ready, missing: JoinerOffer(peers(*range(50, 50 + ready)), tuple(range(90, 90 + missing))),
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
    size: int, target: int, bounds: tuple[int, int], asked: Asked | None, offer: JoinerOffer | None
) -> None:
    limits = Limits(*bounds)
    size = limits.clip(size)
    target = 0 if target <= size or target > limits.maximum else target
    view, terms = view_of(size), terms_of(size, target=target)
    decision = decided(view, terms, limits, asked=asked, offer=offer)
    after = decision.view
    assert limits.minimum <= after.size <= limits.maximum
    assert set(after.ids) <= set(view.ids) | {peer.id for peer in (offer.ready if offer else ())}
    assert after.version == view.version + (after.ids != view.ids)
    assert decision.prepare is None or limits.minimum <= decision.prepare <= limits.maximum
    assert decision.terms.target_size == 0 or decision.terms.target_size > after.size
    assert decision.terms.target_size == 0 or after == view


# ---- requests of several rules and from outside ---------------------------------------------------------------------


def sized(number: int, *, rule: str = "grow") -> Asked:
    return Asked(Resize(number, "local_batch_size"), rule, 7)


def named(*ids: int, when: When = "now", rule: str = "slow", host: int | None = None, of: int = 4) -> Asked:
    left = of - (len(ids) if when == "now" else 0)
    return Asked(Leave(ids, when, left, "local_batch_size", host=host), rule, 7)


END = Asked(StopTraining(), "end", 7)


def from_outside(asked: Asked | None) -> list[Asked]:
    return [] if asked is None else [replace(asked, id="r")]


TWO_FROM_OUTSIDE = from_outside(named(2, when="replaced", rule="move")) + from_outside(sized(5, rule="older"))


def rules_of(requests: Iterable[Asked]) -> list[str]:
    return [one.by for one in requests]


@pytest.mark.parametrize(
    ("rules", "outside", "taken", "superseded"),
    [
        ([], None, [], []),
        ([sized(3)], None, ["grow"], []),
        ([named(1), sized(3)], None, ["grow", "slow"], []),
        ([named(1), named(2, when="replaced", rule="worn")], None, ["slow", "worn"], []),
        ([sized(3), sized(5, rule="hook")], None, ["grow"], [("hook", "grow")]),
        ([sized(3), named(1)], sized(2, rule="resize"), ["resize", "slow"], [("grow", "resize")]),
        ([sized(3), named(1)], named(2, rule="scale-in"), ["scale-in", "slow"], [("grow", "scale-in")]),
        (
            [sized(3), named(1, when="replaced"), named(3, rule="worn")],
            named(2, when="replaced", rule="migrate", host=1),
            ["migrate", "worn"],
            [("grow", "migrate"), ("slow", "migrate")],
        ),
        ([sized(3), named(1)], named(2, when="replaced", rule="migrate"), ["grow", "migrate", "slow"], []),
        ([sized(3)], named(2, when="noticed", rule="notice"), ["grow", "notice"], []),
        ([], named(2, when="noticed", rule="notice"), ["notice"], []),
        ([sized(3), sized(5, rule="hook"), END], None, ["end"], [("grow", "end"), ("hook", "end")]),
        ([*TWO_FROM_OUTSIDE, sized(3)], None, ["move"], [("older", "move"), ("grow", "move")]),
        ([sized(3), END], sized(5, rule="resize"), ["end"], [("resize", "end"), ("grow", "end")]),
    ],
)
def test_what_is_asked_beside_each_other_is_one_request_or_one_of_both_is_superseded(
    rules: list[Asked], outside: Asked | None, taken: list[str], superseded: list[tuple[str, str]]
) -> None:
    merged = merge([*rules, *from_outside(outside)])
    assert rules_of(merged)[: len(taken)] == taken
    assert [(one.by, one.superseded_by) for one in merged[len(taken) :]] == superseded


def test_what_was_merged_can_be_merged_again() -> None:
    rules = merge([named(1), sized(3)])
    merged = merge([*rules, *from_outside(sized(5, rule="resize"))])
    assert (rules_of(merged[:2]), merged[2:]) == (["resize", "slow"], (replace(sized(3), superseded_by="resize"),))


masks = st.sets(st.integers(0, 6)).map(sorted)
rules_called = st.sampled_from("abc")
naming = st.builds(
    lambda ids, when, rule: named(*ids, when=when, rule=rule), masks, st.sampled_from(When.__args__), rules_called
)
anything = st.lists(st.builds(sized, st.integers(-2, 9), rule=rules_called) | naming, max_size=4)


@given(st.integers(1, 6), anything, st.none() | st.builds(sized, st.integers(1, 6), rule=st.just("resize")))
def test_requests_made_together_are_taken_or_superseded_and_leave_work(
    peers_now: int, rules: list[Asked], outside: Asked | None
) -> None:
    given_ones = [*rules, *from_outside(outside)]
    merged = merge(given_ones)
    parts = [one for one in merged if not one.superseded_by]
    alike = (replace(one, superseded_by="") for one in merged)
    assert sorted(map(repr, alike)) == sorted(map(repr, given_ones))
    assert not any(isinstance(one.what, Resize) for one in parts[1:]), "the only one that asks for a size leads"
    decision = decide(BarrierInput(view_of(peers_now), terms_of(peers_now), LIMITS, requests=given_ones))
    assert (*decision.requests, *decision.superseded) == merged
    now, terms = decision.view, decision.terms
    assert now.size >= 1
    assert terms.global_batch_size >= now.size
    assert {*terms.leaving} <= {*now.ids}
    assert not terms.target_size or terms.target_size > now.size or terms.leaving
    if terms.target_size:
        coming = terms.target_size - now.size + len(terms.leaving)
        assert decision.prepare == peers_now + coming, "the agent counts those who leave, and those who come"
        offer = JoinerOffer(peers(*range(90, 90 + coming)))
        reached = decide(BarrierInput(now, terms, LIMITS, offer=offer))
        assert meant_size(reached.view, reached.terms) == terms.target_size
        assert {*terms.leaving} & {*reached.view.ids} == {*reached.terms.departing}
