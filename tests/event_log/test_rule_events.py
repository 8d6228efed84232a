"""Which policy won, where several share one cluster: as the record says it."""

from __future__ import annotations

import pytest

from kungfu.event_log.events import DecisionEvent, RefusedEvent
from tests.event_log.made import made

NAN = float("nan")


@pytest.mark.parametrize(
    ("rule", "won", "lost", "saw", "words"),
    [
        # What the record says counts, whatever the rule is called.
        *((rule, ["b"], ["a", "c"], {"a": 4.0, "b": 2.0, "c": 3.0}, "a wanted 4, b wanted 2, c wanted 3: b won")
          for rule in ("at_most(a, b, c)", "at_least(a, b, c)", "first(a, b, c)", "my own name")),
        ("at_most(a, b)", ["a", "b"], [], {"a": 2.0, "b": 2.0}, "a wanted 2, b wanted 2: a and b won"),
        # A policy that has no target yet takes no part.
        ("first(a, b, c)", ["b"], ["c"], {"a": NAN, "b": 3.0, "c": 4.0}, "b wanted 3, c wanted 4: b won"),
        ("at_most(a, b)", [], ["a"], {"a": 4.0, "b": NAN}, "a wanted 4: none won"),
        # Policies of one name are told apart by their number.
        ("at_most(a, a)", ["a_2"], ["a"], {"a": 4.0, "a_2": 3.0}, "a wanted 4, a_2 wanted 3: a_2 won"),
        ("gns_batch", [], [], {"size": 2.0}, ""),
        ("at_most(a, b)", [], [], {"a": 2.0}, ""),
        ("first(at_most(a, b), c)", ["at_most(a, b)"], ["c"], {"at_most(a, b)": 2.0, "c": 5.0},
         "at_most(a, b) wanted 2, c wanted 5: at_most(a, b) won"),
    ],
)  # fmt: skip
def test_a_contest_is_told_with_who_won_and_a_plain_rule_has_none(
    rule: str, won: list[str], lost: list[str], saw: dict[str, float], words: str
) -> None:
    event = made(event="decision", rule=rule, saw=saw, won=won, lost=lost)
    assert isinstance(event, DecisionEvent)
    assert event.contest() == [words] * bool(words)


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
        f"slow wanted {words}, which cannot be had: no host has a free slot; training continues with 3"
    )
