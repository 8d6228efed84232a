"""Remainders: what cannot meet is found, and what can is never refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.compiler.passes.remainders import can_meet
from kungfu.signal import Signal, Source

STEP = Source("step")
COMPARISONS = {"==": lambda x, r: x == r, "!=": lambda x, r: x != r, "<": lambda x, r: x < r, ">=": lambda x, r: x >= r}


def met(*parts: Signal, low: float = 1, high: float = math.inf) -> bool:
    return can_meet(parts, source="step", low=low, high=high)


def test_remainders_that_meet_in_pairs_meet_all_together_or_are_refused_together() -> None:
    assert met(STEP % 4 == 1, STEP % 6 == 3, STEP % 9 == 0)
    assert not met(STEP % 4 == 1, STEP % 6 == 3, STEP % 9 == 1)


def test_negations_alternatives_and_shifted_steps_are_followed() -> None:
    assert not met(STEP % 2 != 0, STEP % 4 == 2)
    assert not met((STEP % 4 == 1) | (STEP % 4 == 3), STEP % 2 == 0)
    assert not met(~(STEP % 2 == 1), STEP % 4 == 3)
    assert not met((STEP - 1) % 4 == 0, STEP % 2 == 0)
    assert not met((3 * STEP + 1) % 6 == 2, STEP % 10 == 0)
    assert not met((STEP % 6) % 4 == 1, STEP % 3 == 0)


def test_a_number_has_to_lie_between_the_bounds_as_well() -> None:
    assert not met(STEP % 50 == 0, high=49)
    assert met(STEP % 50 == 0, high=50)
    assert not met(STEP % 50 == 0, low=51, high=99)
    assert met(STEP % 50 == 0, low=-math.inf, high=-1)


def test_what_depends_on_more_than_the_source_is_passed_over() -> None:
    other = Source("size")
    assert met((STEP + other) % 4 == 1, STEP % 2 == 0)
    assert met(STEP % other == 1, STEP % 2 == 0)
    assert met(STEP // 4 == 1, STEP % 2 == 0)
    assert met((STEP % 4).previous() == 1, STEP % 2 == 0)


def test_periods_that_are_too_long_to_list_are_passed_over() -> None:
    assert met(STEP % 2**40 == 1, STEP % 2 == 0)
    assert not met(STEP % 999_999 == 5, STEP % 10**6 == 7, STEP % 3 == 0)


one_condition = st.tuples(st.sampled_from(sorted(COMPARISONS)), st.integers(1, 12), st.integers(0, 12))


@given(st.lists(one_condition, min_size=1, max_size=4), st.integers(1, 40), st.integers(0, 80))
def test_it_agrees_with_looking_at_every_number(conditions: list[tuple[str, int, int]], low: int, width: int) -> None:
    parts = [COMPARISONS[name](STEP % modulus, rest) for name, modulus, rest in conditions]
    exists = any(
        all(COMPARISONS[name](number % modulus, rest) for name, modulus, rest in conditions)
        for number in range(low, low + width + 1)
    )
    assert met(*parts, low=low, high=low + width) == exists


@pytest.mark.parametrize("divisor", [-4, 4])
def test_a_negative_divisor_counts_as_python_counts(divisor: int) -> None:
    assert met(STEP % divisor == (1 if divisor > 0 else -3))
    assert not met(STEP % divisor == (1 if divisor > 0 else -3), STEP % 2 == 0)
