"""The budget of rescales."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control import Budget
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy, compose, shadow
from tests.control.test_budget_of_policy import fired_steps

CALM = {"min_size": 1, "max_size": 9, "refused_size": 0, "pending": False}
FLAPPING = Policy("flapping", lambda training: control.always().rescale(3 - training.size))


def changes(budget: Budget | None, *, steps: int) -> list[int]:
    """The steps in which a policy that always wants the other size gets it, at once."""
    return fired_steps(compile_policies([FLAPPING], budget=budget), steps=steps)


def test_without_a_budget_a_policy_may_flap() -> None:
    assert changes(None, steps=5) == [1, 2, 3, 4, 5]


def test_a_budget_is_spent_first_and_then_comes_back_evenly() -> None:
    assert changes(Budget(rescales=2, per_steps=20), steps=45) == [1, 2, 11, 21, 31, 41]


@settings(max_examples=25, deadline=None)
@given(rescales=st.integers(1, 4), per_steps=st.integers(1, 30), steps=st.integers(1, 60))
def test_a_budget_bounds_the_rescales_of_any_run(rescales: int, per_steps: int, steps: int) -> None:
    count = len(changes(Budget(rescales, per_steps), steps=steps))
    assert count <= rescales * (1 + steps / per_steps)
    assert count >= min(steps, rescales)


def test_a_change_that_somebody_else_asked_for_is_charged_too() -> None:
    replay = Replay(compile_policies([FLAPPING], budget=Budget(1, 100)), size=1)
    replay.rescale(2)
    fired = [bool(replay.step([{}] * 2, {**CALM, "step": step, "pending": step == 1}).fired[0]) for step in (1, 2)]
    assert fired == [False, True]  # it was told of no other size before
    replay.rescale(1)
    assert not replay.step([{}], {**CALM, "step": 3}).fired[0]


@pytest.mark.parametrize(("rescales", "fires"), [(1, False), (2, True)])
def test_an_eviction_leaves_those_on_their_way_the_change_that_they_cost(rescales: int, fires: bool) -> None:
    lost = Policy("lost", lambda training: control.always().evict(ops.all_gather(training.loss) > 1))
    replay = Replay(compile_policies([lost], budget=Budget(rescales, 100)), size=2)
    local = [{"loss": 0.0}, {"loss": 2.0}]
    known = {**CALM, "step": 1, "barrier_due": False, "change_due": False}
    assert bool(replay.step(local, {**known, "target_size": 4}).fired[0]) == fires
    assert replay.step(local, {**known, "step": 9, "target_size": 0}).fired[0]


def test_a_shadow_is_not_held_by_the_budget() -> None:
    plan = compile_policies([compose(FLAPPING, shadow(FLAPPING))], budget=Budget(1, 100))
    assert [(rule.mode, "rescales_left" in rule.inputs) for rule in plan.rules] == [
        ("acting", True),
        ("shadow", False),
        ("held", True),  # it tells when the first one is held back
    ]


def test_of_several_rules_in_one_step_each_needs_a_change_of_its_own() -> None:
    def several(training: Any) -> Any:
        busy = ops.all_gather(training.busy_seconds)
        return (
            control.always().replace(busy > 3),
            control.always().rescale(3 - training.size),
            control.always().call(print),
        )

    plan = compile_policies([Policy("several", several)], budget=Budget(1, 100))
    replay = Replay(plan, size=2)
    outcome = replay.step([{"busy_seconds": 1}, {"busy_seconds": 4}], {**CALM, "step": 1})
    hook = plan.rules[2]
    assert [rule.mode for rule in plan.rules] == ["acting", "acting", "acting", "held", "held"]
    assert outcome.fired.tolist() == [True, False, True, False, True]
    assert hook.budget == "rescales_left"
    outcome = replay.step([{"busy_seconds": 1}, {"busy_seconds": 1}], {**CALM, "step": 2})
    assert outcome.fired.tolist() == [False, True, True, False, False]


def test_that_a_rule_is_held_back_is_told_once_until_a_change_is_left_again() -> None:
    plan = compile_policies([FLAPPING], budget=Budget(1, 5))
    replay, told = Replay(plan, size=1), []
    for step in range(1, 14):
        outcome = replay.step([{}] * replay.size, {**CALM, "step": step})
        if outcome.fired[0]:
            replay.rescale(int(outcome.targets[0]))
        if outcome.fired[1]:
            told.append((step, float(outcome.targets[1])))
    assert [rule.name for rule in plan.rules] == ["rescale", "held(rescale)"]
    assert told == [(2, 1.0), (7, 2.0), (12, 1.0)]


@pytest.mark.parametrize(
    "given",
    [
        {"rescales": 0, "per_steps": 5},
        {"rescales": 2, "per_steps": 2.5},
        {"rescales": 2, "per_steps": 5, "replacements": 0},
        {"rescales": 2, "per_steps": 5, "replacements": -1},
        {"rescales": 2, "per_steps": 5, "replacements": 1.5},
        {"rescales": 2, "per_steps": 5, "replacements": True},
        {"rescales": 2, "per_steps": 5, "replacements": math.nan},
        {"rescales": 2, "per_steps": 5, "replacements": 1 << 20},
    ],
)
def test_a_budget_that_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=r"Budget\(.*takes a whole number from 1"):
        Budget(**given)
