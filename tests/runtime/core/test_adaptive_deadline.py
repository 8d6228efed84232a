"""How long a late peer is waited for follows what was seen of the steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu.runtime.core.adaptive_deadline import KNOWN_STEPS, noted_after_s, plausible_wait_s

seconds = st.floats(1e-4, 1e4)
steps = st.lists(seconds, min_size=KNOWN_STEPS, max_size=256)
BOUNDS = {"floor_s": 60.0, "ceiling_s": 300.0}


@pytest.mark.parametrize(
    ("steps_s", "longest_s", "expected"),
    [
        ([0.02] * 256, 0.02, 60.0),  # quick steps: the floor
        ([14.0] * 16, 14.0, 70.0),  # five of the usual
        ([10.0, 12.0] * 8, 12.0, 85.0),  # the median is 11, the spread 1: 55 + 30
        ([0.1] * 250 + [55.0] * 6, 55.0, 110.0),  # twice a pause for validation, which the median does not see
        ([0.1] * 256, 45.0, 90.0),  # nor must it be recent
        ([90.0] * 16, 90.0, 300.0),  # the ceiling
        ([0.02] * 15, 0.02, 300.0),  # too few to know anything
        ([], 0.0, 300.0),
    ],
)
def test_the_deadline_is_that_computed_by_hand(steps_s: list[float], longest_s: float, expected: float) -> None:
    assert plausible_wait_s(steps_s, longest_s=longest_s, **BOUNDS) == pytest.approx(expected)


@settings(deadline=None)
@given(st.lists(seconds, max_size=256), st.just(0.0) | seconds, seconds, st.just(0.0) | seconds)
def test_the_deadline_stays_between_its_bounds_and_above_the_pauses_so_far(
    steps_s: list[float], more_s: float, floor_s: float, span_s: float
) -> None:
    """Equal bounds fix the deadline."""
    longest, ceiling = max(steps_s, default=0.0) + more_s, floor_s + span_s
    found = plausible_wait_s(steps_s, longest_s=longest, floor_s=floor_s, ceiling_s=ceiling)
    assert min(max(longest, floor_s), ceiling) <= found <= ceiling


@settings(deadline=None)
@given(steps, st.floats(1.0, 100.0))
def test_slower_steps_are_never_given_less_time(steps_s: list[float], factor: float) -> None:
    slower = [factor * step for step in steps_s]
    quick, slow = (plausible_wait_s(times, longest_s=max(times), **BOUNDS) for times in (steps_s, slower))
    assert slow >= quick


@settings(deadline=None)
@given(st.floats(8.1, 1e5))
def test_who_is_late_is_told_before_the_wait_is_given_up(deadline_s: float) -> None:
    assert 2.0 <= noted_after_s(deadline_s) < deadline_s
