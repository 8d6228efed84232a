"""What several rules and somebody outside ask of one barrier: the table of the module, and what always holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.barrier import JoinerOffer, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, Leave, Resize, StopTraining, When, merge
from kungfu.runtime.core.terms import Terms, meant_size
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Limits


def size(number: int, *, rule: str = "grow") -> Asked:
    return Asked(Resize(number, "local_batch_size"), rule, 7)


def peers(*ids: int, when: When = "now", rule: str = "slow", host: int | None = None, of: int = 4) -> Asked:
    left = of - (len(ids) if when == "now" else 0)
    return Asked(Leave(ids, when, left, "local_batch_size", host=host), rule, 7)


END = Asked(StopTraining(), "end", 7)


def from_outside(asked: Asked | None) -> list[Asked]:
    return [] if asked is None else [replace(asked, id="r")]


TWO_FROM_OUTSIDE = from_outside(peers(2, when="replaced", rule="move")) + from_outside(size(5, rule="older"))


def rules_of(requests: Iterable[Asked]) -> list[str]:
    return [one.by for one in requests]


@pytest.mark.parametrize(
    ("rules", "outside", "taken", "superseded"),
    [
        ([], None, [], []),
        ([size(3)], None, ["grow"], []),
        ([peers(1), size(3)], None, ["grow", "slow"], []),
        ([peers(1), peers(2, when="replaced", rule="worn")], None, ["slow", "worn"], []),
        ([size(3), size(5, rule="hook")], None, ["grow"], [("hook", "grow")]),
        ([size(3), peers(1)], size(2, rule="resize"), ["resize", "slow"], [("grow", "resize")]),
        ([size(3), peers(1)], peers(2, rule="scale-in"), ["scale-in", "slow"], [("grow", "scale-in")]),
        (
            [size(3), peers(1, when="replaced"), peers(3, rule="worn")],
            peers(2, when="replaced", rule="migrate", host=1),
            ["migrate", "worn"],
            [("grow", "migrate"), ("slow", "migrate")],
        ),
        ([size(3), peers(1)], peers(2, when="replaced", rule="migrate"), ["grow", "migrate", "slow"], []),
        ([size(3)], peers(2, when="noticed", rule="notice"), ["grow", "notice"], []),
        ([], peers(2, when="noticed", rule="notice"), ["notice"], []),
        ([size(3), size(5, rule="hook"), END], None, ["end"], [("grow", "end"), ("hook", "end")]),
        ([*TWO_FROM_OUTSIDE, size(3)], None, ["move"], [("older", "move"), ("grow", "move")]),
        ([size(3), END], size(5, rule="resize"), ["end"], [("resize", "end"), ("grow", "end")]),
    ],
)
def test_what_is_asked_beside_each_other_is_one_request_or_one_of_both_is_superseded(
    rules: list[Asked], outside: Asked | None, taken: list[str], superseded: list[tuple[str, str]]
) -> None:
    merged = merge([*rules, *from_outside(outside)])
    assert rules_of(merged)[: len(taken)] == taken
    assert [(one.by, one.superseded_by) for one in merged[len(taken) :]] == superseded


def test_what_was_merged_can_be_merged_again() -> None:
    rules = merge([peers(1), size(3)])
    merged = merge([*rules, *from_outside(size(5, rule="resize"))])
    assert (rules_of(merged[:2]), merged[2:]) == (["resize", "slow"], (replace(size(3), superseded_by="resize"),))


LIMITS = Limits(1, 6)
masks = st.sets(st.integers(0, 6)).map(sorted)
rules_called = st.sampled_from("abc")
naming = st.builds(
    lambda ids, when, rule: peers(*ids, when=when, rule=rule), masks, st.sampled_from(When.__args__), rules_called
)
anything = st.lists(st.builds(size, st.integers(-2, 9), rule=rules_called) | naming, max_size=4)


@given(st.integers(1, 6), anything, st.none() | st.builds(size, st.integers(1, 6), rule=st.just("resize")))
def test_requests_made_together_are_taken_or_superseded_and_leave_work(
    peers_now: int, rules: list[Asked], outside: Asked | None
) -> None:
    given_ones = [*rules, *from_outside(outside)]
    merged = merge(given_ones)
    parts = [one for one in merged if not one.superseded_by]
    alike = (replace(one, superseded_by="") for one in merged)
    assert sorted(map(repr, alike)) == sorted(map(repr, given_ones))
    assert sum(isinstance(one.what, Resize) for one in parts) <= 1
    assert not any(isinstance(one.what, Resize) for one in parts[1:]), "the one that asks for a size leads"
    view = View(5, tuple(Peer(number, "") for number in range(peers_now)))
    decision = decide(BarrierInput(view, Terms(8 * peers_now, 8.0), LIMITS, requests=given_ones))
    assert (*decision.requests, *decision.superseded) == merged
    now, terms = decision.view, decision.terms
    assert now.size >= 1
    assert terms.global_batch_size >= now.size
    assert {*terms.leaving} <= {*now.ids}
    assert not terms.target_size or terms.target_size > now.size or terms.leaving
    if terms.target_size:
        coming = terms.target_size - now.size + len(terms.leaving)
        gone = peers_now - now.size
        assert decision.prepare == peers_now + coming, "the agent counts those who leave, and those who come"
        assert decision.prepare == terms.target_size + len(terms.leaving) + gone
        offer = JoinerOffer(tuple(Peer(90 + number, "") for number in range(coming)))
        reached = decide(BarrierInput(now, terms, LIMITS, offer=offer))
        assert meant_size(reached.view, reached.terms) == terms.target_size
        assert {*terms.leaving} & {*reached.view.ids} == {*reached.terms.departing}
