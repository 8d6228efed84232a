"""Latencies and scaling curves."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.tune import Latency, amdahl, scaling
from kungfu_planning.tune.latency import expected_s, quantile, total
from tests.planning.tune.instances import curves


def _draw(latency: Latency, *, samples: int) -> np.ndarray:
    return quantile(latency, uniform=np.random.default_rng(0).random(samples))


@pytest.mark.parametrize("latency", [Latency(4, 1), Latency(4, 10), Latency(0, 2), Latency(100, 3)])
def test_drawn_means_approach_the_expected_one(latency: Latency) -> None:
    drawn = _draw(latency, samples=200_000)
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(expected_s(latency), abs=4 * drawn.std() / 200_000**0.5)


@given(st.floats(1e-12, 1 - 1e-12))
def test_far_from_zero_the_quantiles_are_those_of_the_normal_law(share: float) -> None:
    assert quantile(Latency(50, 1), uniform=np.array([share]))[0] == pytest.approx(
        50 + NormalDist().inv_cdf(share), abs=1e-5
    )


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


def test_measured_points_are_kept_and_throughput_is_linear_between_them() -> None:
    curve = scaling({4: 4.0, 1: 10.0, 2: 6.0})
    assert [curve.iteration(gpus).mean_s for gpus in (1, 2, 4)] == pytest.approx([10.0, 6.0, 4.0])
    assert curve.iteration(3).mean_s == pytest.approx(2 / (1 / 6 + 1 / 4))


def test_beyond_the_last_point_it_is_flat_and_below_the_first_proportional() -> None:
    curve = scaling({4: 5.0, 8: 3.0})
    assert curve.iteration(64).mean_s == pytest.approx(3.0)
    assert [curve.iteration(gpus).mean_s for gpus in (1, 2)] == pytest.approx([20.0, 10.0])


@given(curves(), st.integers(1, 40))
def test_a_curve_that_never_slows_down_at_its_points_never_does_between_them(curve: Any, gpus: int) -> None:
    assert curve.iteration(gpus + 1).mean_s <= curve.iteration(gpus).mean_s * (1 + 1e-12)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({}, "has no point"),
        ({0: 3.0}, "a point at 0 GPUs"),
        ({1: 3.0, 2: None}, "a hole at 2 GPUs"),
        ({1: 3.0, 2: float("nan")}, "a hole at 2 GPUs"),
        ({1: 3.0, 4: 0.0}, "0.0 s per iteration at 4 GPUs"),
        ({1: -3.0}, "-3.0 s per iteration at 1 GPUs"),
        ({1: float("inf")}, "inf s per iteration at 1 GPUs"),
    ],
)
def test_a_point_that_cannot_be_is_named(points: dict[int, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scaling(points)


def test_a_negative_spread_is_refused() -> None:
    with pytest.raises(UsageError, match="sigma_s of a latency is -1"):
        scaling({1: 3.0}, sigma_s=-1)


def test_amdahls_law_bounds_the_speed_up_by_the_serial_share() -> None:
    curve = amdahl(12.0, serial=0.08, widest=64)
    assert [curve.iteration(gpus).mean_s for gpus in (1, 2, 64)] == pytest.approx(
        [12, 12 * 0.54, 12 * (0.08 + 0.92 / 64)]
    )
    assert curve.widest == 64


@pytest.mark.parametrize(
    ("serial", "widest", "message"), [(-0.1, 4, "serial share is -0.1"), (1.1, 4, "is 1.1"), (0.1, 0, "has 0 GPUs")]
)
def test_a_law_that_cannot_be_is_refused(serial: float, widest: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        amdahl(12.0, serial=serial, widest=widest)
