"""What a rescale costs, and whether it pays back."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kungfu import control
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy

CALM = {"min_size": 1, "max_size": 9, "refused_size": 0, "pending": False}


@pytest.mark.parametrize(
    ("costs", "fires"),
    [
        ([math.nan, math.nan], True),  # nobody knows: at_first_s, 2 s
        ([3.0, math.nan], True),
        ([3.0, 6.0], False),
        ([5.0, math.nan], False),
    ],
)
def test_a_rescale_has_to_pay_back_what_it_was_measured_to_cost(costs: list[float], fires: bool) -> None:
    def paying(training: Any) -> Any:
        return control.always().payback(training.mean_loss, horizon=20, at_first_s=2.0).rescale(3)

    replay = Replay(compile_policies([Policy("paying", paying)]), size=2)
    local = [{"rescale_seconds": cost} for cost in costs]
    assert bool(replay.step(local, {**CALM, "step": 1, "mean_loss": 0.2}).fired[0]) is fires
    assert not replay.step(local, {**CALM, "step": 2, "mean_loss": math.nan}).fired[0]


def test_a_cost_that_is_none_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"\.payback\(at_first_s=-1\)"):
        control.always().payback(0.1, horizon=10, at_first_s=-1)
