"""Percentiles out of counted bins, against NumPy over all that was counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu.training.record.durations import Durations

seconds = st.one_of(st.floats(1e-6, 1e6), st.sampled_from([0.02, 0.021, 3.0]))


def counted(took: list[float]) -> Durations:
    durations = Durations()
    for one in took:
        durations.add(one)
    return durations


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=300), st.sampled_from([1, 50, 90, 99, 100]))
def test_a_percentile_is_within_one_percent_of_the_one_that_numpy_finds(took: list[float], percent: int) -> None:
    exact = float(np.percentile(took, percent, method="inverted_cdf"))
    assert counted(took).percentile(percent) == pytest.approx(exact, rel=0.01)


def test_a_summary_has_count_marks_and_the_longest_as_it_was() -> None:
    summary = counted([0.02] * 98 + [0.5, 7.25]).summary()
    assert summary == {
        "count": 100,
        "p50": pytest.approx(0.02, rel=0.01),
        "p90": pytest.approx(0.02, rel=0.01),
        "p99": pytest.approx(0.5, rel=0.01),
        "max": 7.25,
    }


def test_of_nothing_there_are_no_percentiles() -> None:
    assert Durations().summary() == {"count": 0}
    assert math.isnan(Durations().percentile(50))


def test_no_time_at_all_counts_as_the_shortest() -> None:
    assert counted([0.0, 0.0]).summary() == {"count": 2, "p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}


def test_a_week_of_steps_fits_in_a_few_hundred_bins() -> None:
    rng = np.random.default_rng(0)
    durations = counted(list(rng.lognormal(-3.0, 1.0, 100_000)))
    assert len(durations._counts) < 600
