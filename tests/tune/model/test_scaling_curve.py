"""Scaling curves between, below and beyond their points."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.tune import amdahl, scaling
from tests.tune.instances import MANY, curves


def test_measured_points_are_kept_and_throughput_is_linear_between_them() -> None:
    curve = scaling({4: 4.0, 1: 10.0, 2: 6.0})
    assert [curve.iteration(gpus).mean_s for gpus in (1, 2, 4)] == pytest.approx([10.0, 6.0, 4.0])
    assert curve.iteration(3).mean_s == pytest.approx(2 / (1 / 6 + 1 / 4))


def test_beyond_the_last_point_it_is_flat_and_below_the_first_proportional() -> None:
    curve = scaling({4: 5.0, 8: 3.0})
    assert curve.iteration(64).mean_s == pytest.approx(3.0)
    assert [curve.iteration(gpus).mean_s for gpus in (1, 2)] == pytest.approx([20.0, 10.0])


@MANY
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
