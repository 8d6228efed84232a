"""Which policy won, where several share one cluster: as the record says it."""

from __future__ import annotations

import pytest

from kungfu.event_log.events import DecisionEvent, RefusedEvent
from tests.event_log.made import made


def decision(rule: str, *, won: tuple[str, ...] = (), lost: tuple[str, ...] = (), **saw: float) -> DecisionEvent:
    event = made(event="decision", rule=rule, saw=saw, won=won, lost=lost)
    assert isinstance(event, DecisionEvent)
    return event


@pytest.mark.parametrize("rule", ["at_most(a, b, c)", "at_least(a, b, c)", "first(a, b, c)", "my own name"])
def test_who_won_is_what_the_record_says_whatever_the_rule_is_called(rule: str) -> None:
    event = decision(rule, won=("b",), lost=("a", "c"), a=4.0, b=2.0, c=3.0)
    assert event.contest() == ["a wanted 4, b wanted 2, c wanted 3: b won"]


def test_policies_with_the_same_target_win_together() -> None:
    assert decision("at_most(a, b)", won=("a", "b"), a=2.0, b=2.0).contest() == ["a wanted 2, b wanted 2: a and b won"]


def test_a_policy_that_had_no_target_yet_takes_no_part() -> None:
    event = decision("first(a, b, c)", won=("b",), lost=("c",), a=float("nan"), b=3.0, c=4.0)
    assert event.contest() == ["b wanted 3, c wanted 4: b won"]


def test_where_no_target_was_taken_none_won() -> None:
    assert decision("at_most(a, b)", lost=("a",), a=4.0, b=float("nan")).contest() == ["a wanted 4: none won"]


def test_policies_of_one_name_are_told_apart_by_their_number() -> None:
    event = decision("at_most(a, a)", won=("a_2",), lost=("a",), a=4.0, a_2=3.0)
    assert event.contest() == ["a wanted 4, a_2 wanted 3: a_2 won"]


def test_a_plain_rule_has_nothing_to_choose() -> None:
    assert decision("gns_batch", size=2.0).contest() == []
    assert decision("at_most(a, b)", a=2.0).contest() == [], "only the fields count"


def test_a_combination_within_a_combination_is_told_by_its_name() -> None:
    event = decision("first(at_most(a, b), c)", won=("at_most(a, b)",), lost=("c",), **{"at_most(a, b)": 2.0, "c": 5.0})
    assert event.contest() == ["at_most(a, b) wanted 2, c wanted 5: at_most(a, b) won"]


@pytest.mark.parametrize(
    ("asked", "peers", "words"),
    [
        (4, (), "4 peers"),
        (3, (1,), "others in place of peer 1"),
        (4, (0, 1), "4 peers and others in place of peers 0 and 1"),
        (3, (), "3 peers"),
    ],
)
def test_a_refusal_says_the_size_and_the_peers_for_whom_nobody_came(
    asked: int, peers: tuple[int, ...], words: str
) -> None:
    event = made(event="refused", rule="slow", asked=asked, size=3, reason="no host has a free slot", peers=peers)
    assert isinstance(event, RefusedEvent)
    assert event.requested() == words
    assert event.one_line() == (
        f"slow wanted {words}, which cannot be had: no host has a free slot; training goes on with 3"
    )
