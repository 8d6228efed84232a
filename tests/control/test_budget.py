"""Budgets of a job and of a policy: what they charge, whom they hold back, and how they share several policies."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu import control, ops, policies, worth
from kungfu.compiler import CompiledPolicies, compile_policies, explain, explain_json
from kungfu.compiler.replay import Replay
from kungfu.compiler.serialize import plan_from_json, plan_to_json
from kungfu.control import Budget
from kungfu.control.rule import JOB
from kungfu.errors import PolicyError
from kungfu.policies import schedule
from kungfu.policy_definition import Policy, at_least, at_most, compose, first, policy, shadow
from kungfu.policy_definition.policy_path import load_policy

CALM = {"min_size": 1, "max_size": 9, "refused_size": 0, "pending": False}
ONE, TWO = Budget(1, 100), Budget(2, 20)
FLAPPING = Policy("flapping", lambda training: control.always().rescale(3 - training.size))


@policy(budget=TWO)
def flapping(training: Any) -> Any:
    return control.always().rescale(3 - training.size)


@policy
def exchanging(training: Any) -> Any:
    return control.always().replace(ops.all_gather(training.busy_seconds) > 1)


def fired_steps(plan: CompiledPolicies, *, steps: int) -> list[int]:
    """The steps in which the first rule fires; what it asks for is carried out at once."""
    replay, size, changed = Replay(plan, size=1), 1, []
    for step in range(1, steps + 1):
        outcome = replay.step([{"busy_seconds": 1.0}] * size, {**CALM, "step": step})
        if outcome.fired[0]:
            size = int(outcome.targets[0])
            replay.rescale(size)
            changed.append(step)
    return changed


def held(plan: CompiledPolicies) -> list[str]:
    return [rule.name for rule in plan.rules if rule.mode == "held"]


@pytest.mark.parametrize(("made", "job"), [(FLAPPING, TWO), (flapping(), None)], ids=["of the job", "of the policy"])
def test_a_budget_is_spent_first_and_then_comes_back_evenly(made: Policy, job: Budget | None) -> None:
    assert fired_steps(compile_policies([made], budget=job), steps=45) == [1, 2, 11, 21, 31, 41]
    assert fired_steps(compile_policies([FLAPPING]), steps=5) == [1, 2, 3, 4, 5], "without a budget it may flap"


@settings(max_examples=25, deadline=None)
@given(rescales=st.integers(1, 4), per_steps=st.integers(1, 30), steps=st.integers(1, 60))
def test_a_budget_bounds_the_rescales_of_any_run(rescales: int, per_steps: int, steps: int) -> None:
    count = len(fired_steps(compile_policies([FLAPPING], budget=Budget(rescales, per_steps)), steps=steps))
    assert count <= rescales * (1 + steps / per_steps)
    assert count >= min(steps, rescales)


def test_a_change_that_somebody_else_asked_for_is_charged_too() -> None:
    replay = Replay(compile_policies([FLAPPING], budget=ONE), size=1)
    replay.rescale(2)
    fired = [bool(replay.step([{}] * 2, {**CALM, "step": step, "pending": step == 1}).fired[0]) for step in (1, 2)]
    assert fired == [False, True], "a change before the first step is not charged"
    replay.rescale(1)
    assert not replay.step([{}], {**CALM, "step": 3}).fired[0]


def test_a_shadow_is_held_by_no_budget() -> None:
    plan = compile_policies([compose(FLAPPING, shadow(FLAPPING))], budget=ONE)
    found = [(rule.mode, "rescales_left" in rule.inputs) for rule in plan.rules]
    assert found == [("acting", True), ("shadow", False), ("held", True)], "the last reports that the first is held"
    (alone,) = compile_policies([shadow(flapping())]).rules
    assert (alone.mode, dict(alone.budgets), "rescales_left" in alone.inputs) == ("shadow", {}, False)


def test_of_several_rules_in_one_step_each_needs_a_change_of_its_own() -> None:
    def several(training: Any) -> Any:
        busy = ops.all_gather(training.busy_seconds)
        return (
            control.always().replace(busy > 3),
            control.always().rescale(3 - training.size),
            control.always().call(print),
        )

    plan = compile_policies([Policy("several", several)], budget=ONE)
    replay = Replay(plan, size=2)
    outcome = replay.step([{"busy_seconds": 1}, {"busy_seconds": 4}], {**CALM, "step": 1})
    hook = plan.rules[2]
    assert [rule.mode for rule in plan.rules] == ["acting", "acting", "acting", "held", "held"]
    assert outcome.fired.tolist() == [True, False, True, False, True]
    assert hook.budget == "rescales_left"
    outcome = replay.step([{"busy_seconds": 1}, {"busy_seconds": 1}], {**CALM, "step": 2})
    assert outcome.fired.tolist() == [False, True, True, False, False]


def test_that_a_rule_is_held_back_is_reported_once_until_a_change_is_left_again() -> None:
    plan = compile_policies([FLAPPING], budget=Budget(1, 5))
    replay, reported = Replay(plan, size=1), []
    for step in range(1, 14):
        outcome = replay.step([{}] * replay.size, {**CALM, "step": step})
        if outcome.fired[0]:
            replay.rescale(int(outcome.targets[0]))
        if outcome.fired[1]:
            reported.append((step, float(outcome.targets[1])))
    assert [rule.name for rule in plan.rules] == ["rescale", "held(rescale)"]
    assert reported == [(2, 1.0), (7, 2.0), (12, 1.0)]


@pytest.mark.parametrize(
    "given",
    [{"rescales": 0}, {"per_steps": 2.5}, *({"replacements": one} for one in (0, -1, 1.5, True, math.nan, 1 << 20))],
)
def test_a_budget_that_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=r"Budget\(.*takes a whole number from 1"):
        Budget(**{"rescales": 2, "per_steps": 5, **given})


# ---- the budget of a policy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("job", "expected"), [(ONE, [1]), (Budget(4, 4), [1, 2, 3, 4, 5, 6])])
def test_the_budget_of_the_job_replaces_it_whether_stricter_or_not(job: Budget, expected: list[int]) -> None:
    plan = compile_policies([flapping()], budget=job)
    assert fired_steps(plan, steps=6) == expected
    assert plan.rules[0].budgets == {JOB: job}


def test_a_policy_written_by_hand_has_none() -> None:
    assert exchanging().budget is None
    assert held(compile_policies([exchanging()])) == []
    # One that acts in every step waits for its barrier, which it has to remember.
    plan = compile_policies([Policy("patient", lambda t: control.every(2).replace(ops.all_gather(t.busy_seconds) > 1))])
    assert (held(plan), plan.folds, plan.watched_signals) == ([], (), {})
    assert "budget of" not in explain(plan)


WORTH = worth.points({10: 5, 60: 0})


@pytest.mark.parametrize(
    ("made", "budget"),
    [
        (policies.autoscale(max_peers=4), Budget(24, 1200, 24)),
        (load_policy("autoscale(max_peers=4)"), Budget(24, 1200, 24)),
        (policies.utility(worth=WORTH, samples=20, price_per_hour=1, max_peers=4), Budget(24, 1200, 24)),
        (policies.replace_stragglers(), Budget(8, 800, 8)),
        (policies.gns_batch(max_peers=4), Budget(10, 1000, 10)),
        (schedule({2: 3}), None),
        (policies.stop_on_nan(), None),
        (policies.linear_scaling(), None),
        (policies.hybrid_scaling({4: 2}), None),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_prebuilt_policies_that_measure_have_a_budget_and_others_have_none(made: Policy, budget: Budget | None) -> None:
    """Prebuilt policies that measure have a budget, and those that follow have none."""
    plan = compile_policies([made])
    assert made.budget == budget
    assert held(plan) == ([f"held({made.name})"] if budget else [])
    assert all(rule.budgets in ({}, {JOB: ONE}) for rule in compile_policies([made], budget=ONE).rules)


# ---- several policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "together", [lambda *both: list(both), lambda *both: [compose(*both)]], ids=["list", "compose"]
)
def test_each_rule_is_under_the_budget_of_its_own_policy_and_every_change_counts(together: Any) -> None:
    plan = compile_policies(together(exchanging(), replace(flapping(), budget=ONE)))
    assert held(plan) == ["held(flapping)"]
    replay = Replay(plan, size=2)
    busy = [{"busy_seconds": 1.0}, {"busy_seconds": 2.0}]
    fired = []
    for step in (1, 2, 3):
        fired.append(replay.step(busy, {**CALM, "step": step}).fired.tolist())
        replay.rescale(2)  # the exchange
    # The exchange goes first, so that nothing is left for the other one, which is reported once.
    assert fired == [[True, False, True], [True, False, False], [True, False, False]]


def test_rules_of_two_budgets_are_held_back_each_by_its_own() -> None:
    plan = compile_policies([policies.replace_stragglers(every=2), flapping()])
    assert [rule.budgets for rule in plan.rules if rule.mode == "acting"] == [
        {"replace_stragglers": Budget(8, 800, 8)},
        {"flapping": TWO},
    ]


@pytest.mark.parametrize("combined", [first, at_most, at_least])
def test_a_merged_rule_is_under_the_strictest_budget_of_its_policies(combined: Any) -> None:
    plan = compile_policies([combined(flapping(), replace(flapping(), budget=ONE))])
    assert plan.rules[0].budgets == {"flapping": TWO, "flapping_2": ONE}
    assert fired_steps(plan, steps=20) == [1]


def test_a_merged_rule_is_held_back_where_one_of_its_policies_has_no_budget_too() -> None:
    bounded = replace(flapping(), budget=ONE)
    assert fired_steps(compile_policies([first(bounded, schedule({5: 1}))]), steps=20) == [1]


def test_two_policies_with_equal_budgets_pay_for_one() -> None:
    other = Policy("other", lambda training: control.every(5).evict(ops.all_gather(training.busy_seconds) > 1))
    one, both = flapping(), replace(other, budget=TWO)
    # Beside the budget, each held rule has a fold for its report, and a rule for a size one for its last request.
    assert len(compile_policies([one, both]).folds) == 1 + 2 + 1


# ---- what a budget leaves alone, and what it tells ------------------------------------------------------------------


def test_a_budget_holds_back_no_stop_no_checkpoint_and_no_setting() -> None:
    @policy(budget=ONE)
    def everything(training: Any) -> Any:
        return (
            control.always().rescale(3 - training.size),
            control.always().set_learning_rate(0.5),
            control.always().set_global_batch_size(training.step),
            control.always().stop(),
            control.always().checkpoint(),
            control.on_rescale().set_learning_rate(training.learning_rate),
            control.always().call(print),
        )

    plan = compile_policies([everything()])
    limited = {rule.name: "rescales_left" in rule.inputs for rule in (*plan.rules, *plan.on_rescale)}
    assert [name for name, is_limited in limited.items() if is_limited] == ["everything", "everything_7", held(plan)[0]]
    assert len(held(plan)) == 1
    assert plan.rules[5].budget == "rescales_left", "a hook is told what is left"


def test_explain_says_whose_budget_it_is_also_of_a_recorded_plan() -> None:
    plan = compile_policies([first(flapping(), policies.autoscale(max_peers=4))])
    assert "\n  budget of flapping: 2 rescales, and one more every 10 steps\n" in explain(plan)
    both = "24 rescales, and one more every 50 steps; apart from them 24 replacements, and one more every 50 steps"
    assert f"\n  budget of autoscale: {both}\n" in explain(plan)
    assert explain(plan_from_json(plan_to_json(plan))) == explain(plan)
    assert explain_json(plan)["rules"][0]["budgets"] == {
        "flapping": {"rescales": 2, "per_steps": 20, "replacements": None},
        "autoscale": {"rescales": 24, "per_steps": 1200, "replacements": 24},
    }
    assert "\n  budget of the job: 1 rescale, and one more every 100 steps\n" in explain(
        compile_policies([flapping()], budget=ONE)
    )


def test_what_is_no_budget_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"@policy\(budget=7\): takes a kf.Budget"):
        policy(budget=7)  # type: ignore[call-overload]
