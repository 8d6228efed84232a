"""Triggers: when a rule may look, what hangs on it, and when it is on: after a step, until something was seen.

Rate limits too: how long a rule keeps still after it has fired, what a rescale costs, and whether it pays back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kungfu import control
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control import Rescale, Trigger
from kungfu.errors import PolicyError
from kungfu.ops import maximum
from kungfu.policy_definition import Policy, at_least, policy
from kungfu.signal import Constant, Signal, TrainingSignals, is_gate
from tests.compiler.small import plan_of

training = TrainingSignals()
CALM = {"size": 1, "min_size": 1, "max_size": 9, "refused_size": 0, "pending": False, "learning_rate": 0.5}


@pytest.mark.parametrize(("first", "narrows"), [(training.step > 100, True), (training.mean_loss < 1, False)])
def test_only_a_condition_on_step_narrows_the_gate(first: Signal, narrows: bool) -> None:
    trigger = control.every(10).when(first)
    assert is_gate(trigger.gate)
    assert isinstance(trigger.predicate, Constant) == narrows
    assert not isinstance(trigger.when(training.mean_loss > 0).predicate, Constant)


def test_a_rescale_keeps_the_local_batch_size_unless_asked_otherwise() -> None:
    action = control.always().rescale(4).action
    assert isinstance(action, Rescale)
    assert action.keep == "local_batch_size"


def fired_steps(trigger: Trigger, losses: Sequence[float], *, clocks: Sequence[float] | None = None) -> list[int]:
    """The steps in which a stop would be asked for, with these losses and the seconds of rank 0's clock."""
    replay = Replay(plan_of(lambda training: trigger.stop()), size=1)
    steps = enumerate(zip(losses, clocks or range(len(losses)), strict=True), start=1)
    return [
        step
        for step, (loss, clock) in steps
        if replay.step([{"clock_seconds": clock}], {**CALM, "step": step, "mean_loss": loss}).fired[0]
    ]


def test_after_a_step_the_next_one_is_the_first() -> None:
    assert fired_steps(control.every(2).after(3), [0.0] * 8) == [4, 6, 8]
    assert is_gate(control.every(2).after(3).gate)


def test_until_something_was_seen_in_its_own_steps_it_is_on_and_never_again() -> None:
    assert fired_steps(control.always().until(training.mean_loss < 1), [3, 2, 0.5, 2, 3]) == [1, 2]
    assert fired_steps(control.every(2).until(training.mean_loss < 1), [0.5, 2, 0.5, 2, 0.5, 0.5, 2, 2]) == [2, 4]


def test_what_was_seen_outlasts_a_rescale() -> None:
    trigger = control.always().until(training.mean_loss < 1)
    replay = Replay(plan_of(lambda training: trigger.stop()), size=1)
    replay.step([{}], {"step": 1, "pending": False, "mean_loss": 0.5})
    replay.rescale(2)
    assert not replay.step([{}, {}], {"step": 2, "pending": False, "mean_loss": 5.0}).fired[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (lambda step=step: control.always().after(step), r"\.after\(.*takes the number of a step")
            for step in (-1, 1.5, True)
        ),
        (lambda: control.always().until(training.mean_loss), r"\.until\(.*takes a bool signal; .* as in \.until\("),
        *(
            (
                lambda one=one: control.always().when(one),
                r"takes a bool signal; compare first, as in .when\(noise > 100\)",
            )
            for one in (training.mean_loss, True, "loss > 1")
        ),
        (lambda: control.on_rescale().when(3), "takes a bool signal"),
        (lambda: control.always().rescale(4, keep="batch"), r"keep='batch'\): .* local_batch_size, global_batch_size"),
        (lambda: control.always().payback(0.1, horizon=10, at_first_s=-1), r"\.payback\(at_first_s=-1\)"),
        *(
            (
                lambda given=given: control.always().cooldown(**given),
                r"\.cooldown\(.*takes a whole number of steps and a finite number",
            )
            for given in ({"steps": -1}, {"steps": 1.5}, {"steps": True}, {"seconds": -0.5}, {"seconds": math.inf})
        ),
    ],
)
def test_what_a_trigger_cannot_take_is_refused_with_what_to_write(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()


# ---- rate limits -----------------------------------------------------------------------------------------------------

LATE = control.always().when(training.step >= 4)


@pytest.mark.parametrize(
    ("trigger", "clocks", "expected"),
    [
        (control.every(2), range(6), [2, 4, 6]),  # without a cooldown
        (control.every(2).cooldown(steps=3), range(12), [2, 6, 10]),
        (control.always().cooldown(steps=5), range(12), [1, 6, 11]),
        (control.always().cooldown(seconds=2.5), range(9), [1, 4, 7]),
        (control.always().cooldown(seconds=2.5), range(0, 90, 10), [*range(1, 10)]),
        # Both have to pass.
        (control.always().cooldown(steps=2, seconds=3), range(9), [1, 4, 7]),
        (control.always().cooldown(steps=4, seconds=3), range(9), [1, 5, 9]),
        # Where nothing fired nothing cools down.
        (LATE.cooldown(steps=100), range(9), [4]),
        (LATE.cooldown(steps=100), range(3), []),
        # The fold of a cooldown says what it said last; the gate must not let that through.
        (control.every(3).cooldown(steps=1), range(8), [3, 6]),
        # Rank 0 leaves after the third step, and the clock of the next one does not turn back.
        (control.always().cooldown(seconds=10), [0.0, 9.0, 10.0, 1.0, 10.0, 11.0], [1, 3, 6]),
    ],
)
def test_a_cooldown_counts_steps_or_seconds_from_the_last_firing(
    trigger: Trigger, clocks: Sequence[float], expected: list[int]
) -> None:
    assert fired_steps(trigger, [0.0] * len(clocks), clocks=clocks) == expected


def test_a_learning_rate_is_asked_for_once_however_long_its_ramp_takes() -> None:
    wanted = [0.25, 0.25, math.nan, 0.25, 0.125, 0.25, -1.0, 0.5]
    rule = control.always().set_learning_rate(training.mean_loss, over_steps=100)
    replay = Replay(plan_of(lambda training: rule), size=1)
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

    replay = Replay(plan_of(paying), size=2)
    local = [{"rescale_seconds": cost} for cost in costs]
    assert bool(replay.step(local, {**CALM, "size": 2, "step": 1, "mean_loss": 0.2}).fired[0]) is fires
    assert not replay.step(local, {**CALM, "size": 2, "step": 2, "mean_loss": math.nan}).fired[0]


@pytest.mark.parametrize(("gain_s", "fires"), [(0.0, False), (0.001, True)])
def test_a_rescale_that_gains_nothing_pays_nothing_back_even_if_it_costs_nothing(gain_s: float, fires: bool) -> None:
    """Before the first rescale, its cost is unknown and counts as 0; a gain of 0 is no reason to try."""
    replay = Replay(plan_of(lambda t: control.always().payback(t.mean_loss, horizon=20).rescale(3)), size=2)
    known = {**CALM, "size": 2, "step": 1, "mean_loss": gain_s}
    assert bool(replay.step([{"rescale_seconds": math.nan}] * 2, known).fired[0]) is fires


# ---- values that are set ---------------------------------------------------------------------------------------------


def values_set(made: Policy, *losses: float) -> list[float | None]:
    """The value that is asked for in each step, with these losses."""
    plan = compile_policies([made])
    replay = Replay(plan, size=1)
    found: list[float | None] = []
    for step, loss in enumerate(losses, start=1):
        outcome = replay.step([{}], {**CALM, "step": step, "mean_loss": loss, "barrier_due": False})
        found.append(float(outcome.targets[0]) if outcome.fired[0] else None)
    return found


@policy
def warms(training: Any, *, least: float = 0.0) -> Any:
    return control.always().set("heat", maximum(training.mean_loss, least))


def test_a_value_is_asked_for_when_it_is_another_than_last_time() -> None:
    assert values_set(warms(), 1.0, 1.0, 2.0, math.nan, 2.0, math.inf, 0.0) == [1.0, None, 2.0, None, None, None, 0.0]


def test_a_value_that_is_asked_for_waits_for_the_barrier_of_the_last_one() -> None:
    plan = compile_policies([warms()])
    replay = Replay(plan, size=1)
    fired = [
        bool(replay.step([{}], {**CALM, "step": step, "mean_loss": float(step), "barrier_due": step == 2}).fired[0])
        for step in (1, 2, 3)
    ]
    assert fired == [True, False, True]


def test_of_two_policies_for_one_value_a_combination_chooses_and_nothing_else() -> None:
    assert values_set(at_least(warms(), warms(least=3.0)), 1.0, 5.0, 5.0) == [3.0, 5.0, None]
    with pytest.raises(PolicyError, match="all set the value of 'heat' and nothing says which one wins"):
        compile_policies([warms(), warms(least=3.0)])


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_value_has_a_name(name: Any) -> None:
    with pytest.raises(PolicyError, match=r"set\(.*the first argument is a name, as in set\('momentum', 0.95\)"):
        control.always().set(name, 3)
