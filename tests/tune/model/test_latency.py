"""The truncated normal law: its moments, its quantiles, and its sums."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.tune import Latency
from kungfu.tune.model.latency import expected_s, quantile, total
from tests.tune.instances import MANY


def _draw(latency: Latency, *, samples: int) -> np.ndarray:
    return quantile(latency, uniform=np.random.default_rng(0).random(samples))


@pytest.mark.parametrize("latency", [Latency(4, 1), Latency(4, 10), Latency(0, 2), Latency(100, 3)])
def test_drawn_means_approach_the_expected_one(latency: Latency) -> None:
    drawn = _draw(latency, samples=200_000)
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(expected_s(latency), abs=4 * drawn.std() / 200_000**0.5)


@MANY
@given(st.floats(1e-12, 1 - 1e-12))
def test_far_from_zero_the_quantiles_are_those_of_the_normal_law(share: float) -> None:
    assert quantile(Latency(50, 1), uniform=np.array([share]))[0] == pytest.approx(
        50 + NormalDist().inv_cdf(share), abs=1e-5
    )


@MANY
@given(st.floats(0, 1, exclude_max=True), st.floats(0, 50), st.floats(0, 50), st.floats(0, 20))
def test_the_same_luck_takes_no_less_time_under_a_slower_law(
    share: float, mean: float, more: float, sigma: float
) -> None:
    luck = np.array([share])
    assert (
        quantile(Latency(mean + more, sigma), uniform=luck)[0]
        >= quantile(Latency(mean, sigma), uniform=luck)[0] - 1e-5 * sigma
    )


def test_without_spread_every_draw_is_the_mean() -> None:
    assert _draw(Latency(3.5), samples=5).tolist() == [3.5] * 5
    assert total(Latency(3.5), count=4, samples=2, generator=np.random.default_rng(0)).tolist() == [14.0, 14.0]


@pytest.mark.parametrize("count", [64, 65])
def test_sums_drawn_one_by_one_and_at_once_have_the_same_mean_and_spread(count: int) -> None:
    latency = Latency(1, 2)
    drawn = total(latency, count=count, samples=40_000, generator=np.random.default_rng(1))
    single = _draw(latency, samples=200_000)
    assert drawn.mean() == pytest.approx(count * expected_s(latency), rel=0.003)
    assert drawn.std() == pytest.approx(count**0.5 * single.std(), rel=0.02)


@pytest.mark.parametrize(("mean", "sigma"), [(-1, 0), (0, -1), (float("nan"), 0), (1, float("inf"))])
def test_a_time_that_is_negative_or_not_finite_is_refused(mean: float, sigma: float) -> None:
    with pytest.raises(UsageError, match="finite number of seconds"):
        Latency(mean, sigma)
