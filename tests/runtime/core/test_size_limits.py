"""What a barrier decides under a person's hold on the size, and under limits that change while a job runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.barrier import Decision, JoinerOffer, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import AGENT, Asked, Leave, Resize, SetBatch, SetLimits, SetRate, StopTraining, When
from kungfu.runtime.core.size_limits import Hold, SizeLimits
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.settings import Limits
from tests.runtime.core.deciding import LIMITS, leaving, peers, size_request, terms_of, view_of

HELD = SizeLimits(hold=Hold(3), revision=1)


def held_terms(size: int, *, target: int = 0, sizes: SizeLimits = HELD) -> Terms:
    return replace(terms_of(size, target=target), sizes=sizes)


def barrier(
    size: int, *requests: Asked, target: int = 0, sizes: SizeLimits = HELD, offer: JoinerOffer | None = None
) -> Decision:
    """The decision of ``size`` peers of a job that is held at three, unless ``sizes`` says otherwise."""
    terms = held_terms(size, target=target, sizes=sizes)
    return decide(BarrierInput(view_of(size), terms, LIMITS, requests, offer))


def by_hand(what: Resize | SetLimits, sizes: SizeLimits) -> Asked:
    return Asked(what, "kungfu resize", id="r", sizes=sizes)


def rules_held(decision: Decision) -> list[str]:
    return [one.by for one in decision.held]


GROW, SHRINK, STAY = (size_request(size) for size in (4, 2, 3))
HOOK = Asked(Resize(5), "hook", 10)


@pytest.mark.parametrize("asked", [GROW, SHRINK, leaving(1), HOOK])
def test_a_hold_stops_what_rules_and_hooks_request_of_the_size(asked: Asked) -> None:
    decision = barrier(3, asked)
    assert (decision.view, decision.prepare, decision.terms.target_size) == (view_of(3), None, 0)
    assert (decision.requests, decision.superseded, decision.held) == ((), (), (asked,))
    # A lost peer is replaced up to the size that is held.
    recovering = barrier(2, asked, target=3)
    assert (recovering.view, recovering.prepare, recovering.terms.target_size) == (view_of(2), None, 3)
    joined = decide(BarrierInput(view_of(2), recovering.terms, LIMITS, offer=JoinerOffer(peers(7))))
    assert (joined.view.ids, joined.terms.sizes) == ((0, 1, 7), HELD)


def test_a_hook_and_a_rule_are_both_stopped_and_neither_supersedes_the_other() -> None:
    assert rules_held(barrier(3, GROW, HOOK)) == ["rule", "hook"]


@pytest.mark.parametrize("size", [2, 3])
def test_a_request_for_the_size_that_is_held_is_not_stopped(size: int) -> None:
    decision = barrier(size, STAY)
    assert (decision.held, decision.prepare) == ((), 3 if size == 2 else None)
    assert barrier(2, replace(STAY, what=Resize(3, "local_batch_size")), target=3).terms.target_size == 3


def test_what_keeps_the_size_is_carried_out() -> None:
    exchange = barrier(3, leaving(1, when="replaced"))
    assert (exchange.prepare, exchange.terms.leaving, exchange.held) == (4, (1,), ())
    settings = [Asked(what, "rule", 10) for what in (SetBatch(48), SetRate(0.1), StopTraining())]
    decision = barrier(3, GROW, *settings)
    assert (list(decision.settings), rules_held(decision)) == (settings, ["rule"])


def test_a_notice_and_the_agent_reach_the_size_that_is_held() -> None:
    notice = Asked(Leave((2,), "noticed", 3), "preemption notice", id=AGENT)
    noticed = barrier(3, notice, GROW)
    assert (noticed.view.ids, noticed.terms.target_size, noticed.prepare) == ((0, 1), 3, 4)
    assert rules_held(noticed) == ["rule"]
    returned = barrier(2, Asked(Resize(3), "a host with free slots has come", id=AGENT))
    assert (returned.prepare, returned.terms.sizes) == (3, HELD)


@pytest.mark.parametrize(("size", "target", "prepare"), [(3, 0, None), (2, 0, 3), (2, 3, None), (4, 0, None)])
def test_a_host_that_comes_restores_at_most_the_size_that_is_held(size: int, target: int, prepare: int | None) -> None:
    """Six peers before the loss of a host; a person holds what was left, and a host with free slots comes."""
    came = barrier(size, Asked(Resize(6), "a host with free slots has come", id=AGENT), target=target)
    assert (came.view, came.prepare, came.terms.target_size) == (view_of(size), prepare, 3 if size == 2 else 0)
    assert (came.held, came.superseded) == ((), ()), "nobody needs to know"


def test_a_rule_is_reported_once_for_each_hold() -> None:
    first = barrier(3, GROW)
    again = decide(BarrierInput(view_of(3), first.terms, LIMITS, [SHRINK, HOOK, replace(HOOK, step=11)]))
    assert (rules_held(first), rules_held(again)) == (["rule"], ["hook"])
    assert again.terms.held_rules == ("rule", "hook")
    another = by_hand(Resize(3), SizeLimits(hold=Hold(3, until=9.0), revision=2))
    renewed = decide(BarrierInput(view_of(3), again.terms, LIMITS, [another]))
    assert renewed.terms.held_rules == ()
    assert rules_held(decide(BarrierInput(view_of(3), renewed.terms, LIMITS, [GROW]))) == ["rule"]


@pytest.mark.parametrize(("held", "target", "prepare"), [(2, 0, 2), (3, 3, 3), (4, 4, 4)])
def test_a_hold_replaces_the_growth_that_a_rule_has_under_way(held: int, target: int, prepare: int) -> None:
    asked = by_hand(Resize(held), SizeLimits(hold=Hold(held), revision=1))
    decision = barrier(2, GROW, asked, target=4, sizes=SizeLimits())
    assert (decision.view.size, decision.terms.target_size, decision.prepare) == (2, target, prepare)
    # The rule requests the size under way, or was stopped.
    assert rules_held(decision) == []


def test_a_coordinator_that_learns_of_a_hold_late_undoes_what_a_rule_did_since() -> None:
    notice = Asked(SetLimits(), "the limits of the size", id=AGENT, sizes=HELD)
    under_way = barrier(3, notice, target=5, sizes=SizeLimits())
    assert (under_way.terms.target_size, under_way.prepare) == (0, 3)
    grown = barrier(5, notice, sizes=SizeLimits())
    assert (grown.view.size, grown.terms.sizes) == (3, HELD)
    replacing = barrier(2, notice, target=3, sizes=SizeLimits())
    assert (replacing.terms.target_size, replacing.prepare, replacing.requests) == (3, None, ())
    assert barrier(2, notice, sizes=SizeLimits()).prepare is None, "its replacements may be used up"


def test_a_size_by_hand_keeps_its_batch_beside_a_notice_that_comes_later() -> None:
    limits = SizeLimits(maximum=3, revision=1)
    asked = by_hand(Resize(3, "local_batch_size"), limits)
    notice = Asked(SetLimits(), "the limits of the size", id=AGENT, sizes=limits)
    for both in ((asked, notice), (notice, asked)):
        shrunk = decide(BarrierInput(view_of(6), terms_of(6), LIMITS, both))
        assert (shrunk.view.size, shrunk.terms.batch_per_peer, shrunk.terms.global_batch_size) == (3, 32.0, 96)
        assert [one.by for one in shrunk.superseded] == [notice.by]


def test_a_request_by_hand_replaces_a_hold_and_an_older_message_changes_nothing() -> None:
    grown = barrier(3, by_hand(Resize(4), SizeLimits(revision=2)))
    assert (grown.prepare, grown.terms.sizes.hold) == (4, None)
    late = decide(BarrierInput(view_of(3), grown.terms, LIMITS, [by_hand(Resize(3), HELD)]))
    assert late.terms.sizes == SizeLimits(revision=2)
    released = barrier(3, Asked(SetLimits(), "kungfu resize --release", id=AGENT, sizes=SizeLimits(revision=2)))
    assert (released.view, released.prepare, released.requests) == (view_of(3), None, ())
    assert decide(BarrierInput(view_of(3), released.terms, LIMITS, [GROW])).prepare == 4


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "target", "limits", "after", "target_after", "prepare"),
    [
        (3, 0, (1, 2), 2, 0, None),  # it shrinks at once
        (3, 0, (4, 6), 3, 4, 4),  # joiners start
        (3, 0, (2, 3), 3, 0, None),
        (3, 6, (1, 5), 3, 5, 5),  # fewer joiners come
        (3, 6, (1, 3), 3, 0, 3),  # none comes
        (3, 6, (1, 2), 2, 0, 2),
        (3, 5, (4, 6), 3, 5, None),
        (3, 4, (5, 6), 3, 5, 5),
    ],
)
def test_a_size_outside_new_limits_moves_to_the_nearest_one(
    size: int, target: int, limits: tuple[int, int], after: int, target_after: int, prepare: int | None
) -> None:
    asked = by_hand(SetLimits(*limits), SizeLimits(*limits, revision=1))
    decision = barrier(size, asked, target=target, sizes=SizeLimits())
    assert (decision.view.size, decision.terms.target_size, decision.prepare) == (after, target_after, prepare)
    whole = round(32.0 * size)
    assert decision.terms.global_batch_size == whole, "nobody outside changes the training"


def test_rules_keep_to_the_limits_in_force_and_request_again_what_these_had_refused() -> None:
    limited = SizeLimits(2, 4, revision=1)
    up, down = barrier(3, size_request(6), sizes=limited), barrier(3, size_request(1), sizes=limited)
    assert (up.prepare, up.terms.refused_size, down.view.size) == (4, 6, 2)
    asked = by_hand(SetLimits(2, 6), SizeLimits(2, 6, revision=2))
    assert decide(BarrierInput(view_of(3), up.terms, LIMITS, [asked])).terms.refused_size == 0


def test_limits_that_nobody_has_set_are_those_of_the_start() -> None:
    assert SizeLimits().within(Limits(2, 8)) == Limits(2, 8)
    assert SizeLimits(minimum=1).within(Limits(2, 8)) == Limits(1, 8)
    same = SizeLimits(1, 4)
    assert same.changed(SizeLimits(1, 4)) is same
    assert same.changed(SizeLimits(1, 5)) == SizeLimits(1, 5, revision=1)


# ---- whatever rules request ------------------------------------------------------------------------------------------

masks = st.sets(st.integers(0, 6)).map(sorted).map(tuple)
naming = st.builds(lambda ids, when: leaving(*ids, when=when), masks, st.sampled_from(When.__args__))
sized = st.builds(size_request, st.integers(-2, 9))


@given(st.integers(1, 6), st.integers(0, 6), st.lists(sized | naming, max_size=4))
def test_under_a_hold_no_rule_changes_the_size_or_the_size_under_way(size: int, held: int, rules: list[Asked]) -> None:
    rules = [one for one in rules if not isinstance(one.what, Leave) or one.what.when != "noticed"]
    held = max(size, held)
    target, sizes = held if held > size else 0, SizeLimits(hold=Hold(held), revision=1)
    decision = barrier(size, *rules, target=target, sizes=sizes)
    assert decision.view == view_of(size)
    assert decision.terms.target_size in (target, held if decision.terms.leaving else target)
    assert {one.by for one in decision.held} <= {"rule"}
