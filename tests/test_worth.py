"""What it is worth that a job is complete."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.errors import PolicyError
from kungfu.testing import run_policy
from kungfu.worth import Worth


def values(worth: Worth, *times: float, first: float = math.nan) -> list[float]:
    """Its value at these times."""

    @kf.policy
    def watching(training: Any) -> Any:
        value = worth.at(training.mean_loss, first=training.learning_rate)
        return kf.control.always().call(lambda control, value: None, value)

    arrays = {"mean_loss": list(times), "learning_rate": [first] * len(times)}
    return [one.inputs["value"] for one in run_policy(watching(), arrays)]


@pytest.mark.parametrize(
    ("worth", "first", "expected"),
    [
        (kf.worth.linear(100.0, zero_at_s=1000), math.nan, {0: 100, 250: 75, 1000: 0, 2000: -100, math.nan: math.nan}),
        (kf.worth.concave(100.0, zero_at_s=1000), math.nan, {0: 100, 500: 75, 1000: 0, 2000: -300}),
        (kf.worth.concave(8.0, zero_at_s=2, power=3), math.nan, {1: 7, math.nan: math.nan}),
        # Points are joined by lines, and flat outside.
        (
            kf.worth.points({200: 0.0, 100: 50.0, 150: 40.0}), math.nan,
            {0: 50, 100: 50, 125: 45, 150: 40, 175: 20, 200: 0, 900: 0},
        ),
        # Steps are bridged, and the last one leads to the first estimate, before which there is no value.
        (
            kf.worth.steps({100: 50.0, 200: 30.0}), 400,
            {50: 50, 100: 50, 150: 40, 200: 30, 300: 15, 400: 0, 600: -30},
        ),
        (kf.worth.steps({100: 50.0}), math.nan, {50: math.nan}),
    ],
)  # fmt: skip
def test_a_worth_has_these_values_by_seconds(worth: Worth, first: float, expected: dict[float, float]) -> None:
    np.testing.assert_allclose(values(worth, *expected, first=first), [*expected.values()], rtol=1e-5)


def test_a_job_that_begins_within_its_last_deadline_loses_all_beyond_it() -> None:
    worth = kf.worth.steps({100: 50.0})
    early, late = values(worth, 99, 101, first=60)
    assert early == pytest.approx(50)
    assert late < -400


@pytest.mark.parametrize(
    ("worth", "message"),
    [
        (kf.worth.points({10: 1, 20: 2}), r"rises from 1 after 10 s to 2 after 20 s"),
        (kf.worth.steps({20: 2, 10: 1}), r"kf\.worth\.steps\(\{10: 1, 20: 2\}\): rises"),
        (kf.worth.points({}), "takes {seconds: value}"),
        (kf.worth.points({10: math.nan}), "takes {seconds: value}"),
        (kf.worth.points({math.inf: 1}), "takes {seconds: value}"),
        (kf.worth.points({-1: 1}), "takes {seconds: value}"),
        (kf.worth.steps({0: 1}), "takes {seconds: value}"),
        (kf.worth.points(3), "takes {seconds: value}"),  # type: ignore[arg-type]
        (kf.worth.points({"a": 1}), "takes {seconds: value}"),  # type: ignore[dict-item]
        (kf.worth.steps({10: -1}), "at least 0"),
        (kf.worth.linear(-1, zero_at_s=10), "rise with time"),
        (kf.worth.linear(math.nan, zero_at_s=10), "finite value"),
        (kf.worth.linear(1, zero_at_s=0), "seconds above 0"),
        (kf.worth.concave(1, zero_at_s=10, power=1), "power above 1"),
        (kf.worth.concave(1, zero_at_s=10, power=math.nan), "power above 1"),
    ],
)
def test_what_is_no_worth_says_why(worth: Worth, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        worth.check()


@pytest.mark.parametrize(
    "worth", [kf.worth.linear(1, zero_at_s=2), kf.worth.concave(1, zero_at_s=2), kf.worth.steps({1: 2, 3: 0})]
)
def test_a_worth_that_falls_is_one(worth: Worth) -> None:
    worth.check()
