"""Clouds that cannot be are refused with the wrong value."""

from __future__ import annotations

import pytest

from kungfu.errors import UsageError
from kungfu_planning.tune import Dataset, Instance


def test_a_price_of_zero_is_refused_because_every_plan_would_be_as_good() -> None:
    with pytest.raises(UsageError, match=r"price of an instance is 0 \$/s"):
        Instance(4, 0)


@pytest.mark.parametrize(
    ("gpus", "price", "minimum", "message"),
    [(0, 1, 60, "has 0 GPUs"), (1, float("nan"), 60, "is nan"), (1, 1, -1, "least billed time is -1")],
)
def test_an_instance_out_of_range_is_refused(gpus: int, price: float, minimum: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Instance(gpus, price, minimum)


def test_data_costs_its_size_times_its_price_and_neither_may_be_negative() -> None:
    assert Dataset(150, 0.01).dollars == pytest.approx(1.5)
    with pytest.raises(UsageError, match="size in GB is -1"):
        Dataset(-1, 0.01)
    with pytest.raises(UsageError, match="price per GB is inf"):
        Dataset(1, float("inf"))
