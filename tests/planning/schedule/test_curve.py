"""Curves between, below and beyond what was measured, and measurements that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.schedule import LINEAR, Curve
from kungfu_planning.schedule.curve import best_gpus, rate_at, rates_up_to, ring_curve
from tests.planning.schedule.instances import CURVES


def test_rates_are_proportional_below_linear_between_and_flat_beyond() -> None:
    curve = Curve((2, 4, 8), (10.0, 16.0, 12.0))
    assert [rate_at(curve, gpus=p) for p in (0, 1, 2, 3, 4, 6, 8, 100)] == [0, 5, 10, 13, 16, 14, 12, 12]


def test_perfect_scaling_is_exact() -> None:
    assert rates_up_to(LINEAR, gpus=1024).tolist() == list(range(1025))


@given(curve=st.sampled_from(CURVES), gpus=st.integers(0, 40))
def test_the_table_of_rates_holds_the_same_numbers(curve: Curve, gpus: int) -> None:
    assert rates_up_to(curve, gpus=40)[gpus] == pytest.approx(rate_at(curve, gpus=gpus), rel=1e-12)


def test_the_best_size_is_the_smallest_of_the_fastest() -> None:
    assert best_gpus(Curve((1, 2, 4), (1.0, 3.0, 3.0))) == 2


@pytest.mark.parametrize(
    ("gpus", "rates", "says"),
    [
        ((), (), "one rate for each GPU count, got 0 counts and 0 rates"),
        ((1, 2), (1.0,), "got 2 counts and 1 rates"),
        ((2, 1), (1.0, 2.0), "must rise"),
        ((1, 1), (1.0, 2.0), "must rise"),
        ((0, 1), (1.0, 2.0), "must rise from at least 1"),
        ((1, 2), (1.0, math.nan), "a hole: its rate on 2 GPUs is nan"),
        ((1, 2), (0.0, 1.0), "the rate on 1 GPUs is 0.0"),
        ((1, 2), (1.0, -2.0), "the rate on 2 GPUs is -2.0"),
        ((1,), (1e-300,), "the rate on 1 GPUs is 1e-300; must be 1e-12"),
        ((1,), (1e300,), "choose another unit of work"),
    ],
)
def test_a_curve_with_a_fault_is_refused(gpus, rates, says) -> None:
    with pytest.raises(UsageError, match=says):
        Curve(gpus, rates)


def test_a_ring_curve_scales_perfectly_without_communication_and_peaks_with_it() -> None:
    assert ring_curve(0.0, up_to=8).rates == (1.0, 2.0, 4.0, 8.0)
    rates = np.array(ring_curve(0.1, up_to=64).rates)
    assert 0 < rates.argmax() < len(rates) - 1
    with pytest.raises(UsageError, match=r"communication -0\.1"):
        ring_curve(-0.1)
