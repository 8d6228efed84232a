"""The learning rate follows the batch on a rescale."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kungfu.compiler import compile_policies, fired_on_rescale
from kungfu.policies import linear_scaling, schedule
from kungfu.testing import ClusterModel, FiredRule, Start, run_policy


def rates_after(*, batch: int, before: int, rate: float = 0.125, sizes: tuple[int, int] = (2, 4)) -> list[float]:
    """What it asks for in a barrier that changes the size, and the batch from `before` to `batch`."""
    barrier = {
        "size": sizes[1],
        "previous_size": sizes[0],
        "step": 9,
        "global_batch_size": batch,
        "previous_global_batch_size": before,
        "epoch_samples": 0,
        "learning_rate": rate,
    }
    return [one.value for one in fired_on_rescale(compile_policies([linear_scaling()]), barrier, step=9)]


@pytest.mark.parametrize(
    ("before", "batch", "sizes", "expected"),
    [
        (64, 128, (2, 4), [0.25]),  # 0.125 * 128 / 64
        (96, 32, (3, 1), [0.125 / 3]),  # down to one peer
        (8, 64, (1, 8), [1.0]),  # up from one
        (64, 100, (2, 4), [0.1953125]),  # an epoch of 100 samples bounds the batch: 0.125 * 100 / 64
        (64, 64, (2, 4), []),  # the batch stays, and so the rate
    ],
)
def test_the_rate_is_multiplied_by_what_the_batch_is(
    before: int, batch: int, sizes: tuple[int, int], expected: list[float]
) -> None:
    assert rates_after(before=before, batch=batch, sizes=sizes) == pytest.approx(expected)


@pytest.mark.parametrize("rate", [math.nan, 0.0])
def test_a_rate_that_is_not_known_or_zero_is_left_alone(rate: float) -> None:
    assert rates_after(before=64, batch=128, rate=rate) == []


def rates(policies: Any, *, steps: int = 60) -> list[FiredRule]:
    model = ClusterModel({1: 100, 8: 800}, steps=steps, start=Start(size=2, global_batch_size=32, learning_rate=0.125))
    return [one for one in run_policy(policies, model) if one.rule != "schedule"]


def test_linear_scaling_starts_from_where_the_last_ramp_leads() -> None:
    found = rates([schedule({5: 4, 10: 8}), linear_scaling(over_steps=1000)])
    assert [one.value for one in found] == [0.25, 0.5]
