"""Who won, where several policies share one cluster."""

from __future__ import annotations

from kungfu.cli.report.choice import choice_of, told_choices


def winners(rule: str, **saw: float | None) -> tuple[str, ...]:
    choice = choice_of(rule, saw)
    assert choice is not None
    return choice.winners


def test_the_smallest_wish_wins_at_most() -> None:
    assert winners("at_most(a, b, c)", a=4.0, b=2.0, c=3.0) == ("b",)


def test_policies_with_the_same_smallest_wish_win_together() -> None:
    assert winners("at_most(a, b)", a=2.0, b=2.0) == ("a", "b")


def test_the_first_with_a_wish_wins_first_even_when_a_later_one_wishes_the_same() -> None:
    assert winners("first(a, b, c)", a=None, b=3.0, c=3.0) == ("b",)


def test_where_nobody_wishes_nobody_wins() -> None:
    assert winners("at_most(a, b)", a=None, b=float("nan")) == ()


def test_policies_of_one_name_are_told_apart_by_their_number() -> None:
    assert winners("at_most(a, a)", a=4.0, a_2=3.0) == ("a_2",)


def test_a_plain_rule_has_nothing_to_choose() -> None:
    assert choice_of("gns_batch", {"size": 2.0}) is None
    assert choice_of("mine(a, b)", {"a": 2.0}) is None


def test_a_combination_within_a_combination_is_told_when_it_won() -> None:
    saw = {"a": 4.0, "b": 2.0, "at_most(a, b)": 2.0, "c": 5.0}
    assert told_choices("first(at_most(a, b), c)", saw) == [
        "at_most(a, b) wanted 2, c wanted 5: at_most(a, b) won (the first that wants anything counts)",
        "a wanted 4, b wanted 2: b won (the smallest wish counts)",
    ]
