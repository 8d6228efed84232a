"""Rate limits: how long a rule keeps still after it has fired, what a rescale costs, and whether it pays back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu import control
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control import Trigger
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy, at_least
from kungfu.signal import TrainingSignals

training = TrainingSignals()
CALM = {"size": 1, "min_size": 1, "max_size": 9, "refused_size": 0, "pending": False, "learning_rate": 0.5}


def fired_steps(trigger: Trigger, *, steps: int, seconds: float = 1.0, **changed: Any) -> list[int]:
    """The steps in which a stop would be asked for, with so many seconds between two steps."""
    replay = Replay(compile_policies([Policy("alone", lambda training: trigger.stop())]), size=1)
    return [
        step
        for step in range(1, steps + 1)
        if replay.step([{"clock_seconds": (step - 1) * seconds}], {**CALM, "step": step, **changed}).fired[0]
    ]


LATE = control.always().when(training.step >= 4)


@pytest.mark.parametrize(
    ("trigger", "given", "expected"),
    [
        (control.every(2), {"steps": 6}, [2, 4, 6]),  # without a cooldown
        (control.every(2).cooldown(steps=3), {"steps": 12}, [2, 6, 10]),
        (control.always().cooldown(steps=5), {"steps": 12}, [1, 6, 11]),
        (control.always().cooldown(seconds=2.5), {"steps": 9}, [1, 4, 7]),
        (control.always().cooldown(seconds=2.5), {"steps": 9, "seconds": 10}, [*range(1, 10)]),
        # Both have to pass.
        (control.always().cooldown(steps=2, seconds=3), {"steps": 9}, [1, 4, 7]),
        (control.always().cooldown(steps=4, seconds=3), {"steps": 9}, [1, 5, 9]),
        # Where nothing fired nothing cools down.
        (LATE.cooldown(steps=100), {"steps": 9}, [4]),
        (LATE.cooldown(steps=100), {"steps": 3}, []),
        # The fold of a cooldown says what it said last; the gate must not let that through.
        (control.every(3).cooldown(steps=1), {"steps": 8}, [3, 6]),
    ],
)
def test_a_cooldown_counts_steps_or_seconds_from_the_last_firing(
    trigger: Trigger, given: dict[str, Any], expected: list[int]
) -> None:
    assert fired_steps(trigger, **given) == expected


def test_the_clock_of_a_new_leader_does_not_turn_back() -> None:
    trigger = control.always().cooldown(seconds=10)
    replay = Replay(compile_policies([Policy("alone", lambda training: trigger.stop())]), size=1)
    clocks = [0.0, 9.0, 10.0, 1.0, 10.0, 11.0]  # rank 0 left behind the third step, and another took its place
    fired = [
        bool(replay.step([{"clock_seconds": clock}], {**CALM, "step": step}).fired[0])
        for step, clock in enumerate(clocks, start=1)
    ]
    assert fired == [True, False, True, False, False, True]


@pytest.mark.parametrize(
    "given", [{"steps": -1}, {"steps": 1.5}, {"steps": True}, {"seconds": -0.5}, {"seconds": math.inf}]
)
def test_a_cooldown_that_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=r"\.cooldown\(.*takes a whole number of steps and a finite number"):
        control.always().cooldown(**given)


def test_a_learning_rate_is_asked_for_once_however_long_its_ramp_takes() -> None:
    wanted = [0.25, 0.25, math.nan, 0.25, 0.125, 0.25, -1.0, 0.5]
    rule = control.always().set_learning_rate(training.mean_loss, over_steps=100)
    replay = Replay(compile_policies([Policy("alone", lambda training: rule)]), size=1)
    outcomes = [replay.step([{}], {**CALM, "step": step, "mean_loss": one}) for step, one in enumerate(wanted, start=1)]
    asked = [None if math.isnan(one.targets[0]) else float(one.targets[0]) for one in outcomes]
    assert asked == [0.25, None, None, None, 0.125, 0.25, None, None]


def test_a_standing_request_changes_no_faster_than_its_cooldown_allows() -> None:
    def request(training: Any) -> Any:
        return control.always().cooldown(steps=3).rescale(training.mean_loss)

    floor = Policy("floor", lambda training: control.always().rescale(1))
    replay = Replay(compile_policies([at_least(Policy("request", request), floor)]), size=1)
    targets = [
        float(replay.step([{}], {**CALM, "step": step, "mean_loss": float(step + 1)}).targets[0])
        for step in range(1, 8)
    ]
    np.testing.assert_array_equal(targets, [2, 2, 2, 5, 5, 5, 8])


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
    assert bool(replay.step(local, {**CALM, "size": 2, "step": 1, "mean_loss": 0.2}).fired[0]) is fires
    assert not replay.step(local, {**CALM, "size": 2, "step": 2, "mean_loss": math.nan}).fired[0]


def test_a_cost_that_is_none_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"\.payback\(at_first_s=-1\)"):
        control.always().payback(0.1, horizon=10, at_first_s=-1)
