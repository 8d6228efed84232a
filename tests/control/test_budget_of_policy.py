"""The budget of a policy: it holds back that policy's rules, where the job has no budget of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kungfu import control, ops, worth
from kungfu.compiler import CompiledPolicies, compile_policies, explain, explain_json
from kungfu.compiler.replay import Replay
from kungfu.compiler.serialize import plan_from_json, plan_to_json
from kungfu.control import Budget
from kungfu.control.rule import JOB
from kungfu.errors import PolicyError
from kungfu.policies import (
    autoscale,
    gns_batch,
    hybrid_scaling,
    linear_scaling,
    replace_stragglers,
    schedule,
    stop_on_nan,
    utility,
)
from kungfu.policy_definition import Policy, at_least, at_most, compose, first, policy, shadow
from kungfu.policy_definition.policy_path import load_policy

CALM = {"min_size": 1, "max_size": 9, "refused_size": 0, "pending": False}
ONE, TWO = Budget(1, 100), Budget(2, 20)


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


def test_a_policy_is_held_to_its_own_budget_where_the_job_has_none() -> None:
    assert fired_steps(compile_policies([flapping()]), steps=45) == [1, 2, 11, 21, 31, 41]


@pytest.mark.parametrize(("job", "expected"), [(ONE, [1]), (Budget(4, 4), [1, 2, 3, 4, 5, 6])])
def test_the_budget_of_the_job_stands_in_its_place_whether_stricter_or_not(job: Budget, expected: list[int]) -> None:
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
        (autoscale(max_peers=4), Budget(24, 1200, 24)),
        (utility(worth=WORTH, samples=20, price_per_hour=1, max_peers=4), Budget(24, 1200, 24)),
        (replace_stragglers(), Budget(8, 800, 8)),
        (gns_batch(max_peers=4), Budget(10, 1000, 10)),
        (schedule({2: 3}), None),
        (stop_on_nan(), None),
        (linear_scaling(), None),
        (hybrid_scaling({4: 2}), None),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_prebuilt_policies_that_measure_have_a_budget_and_others_have_none(made: Policy, budget: Budget | None) -> None:
    """Prebuilt policies that measure have a budget, and those that follow have none."""
    plan = compile_policies([made])
    assert made.budget == budget
    assert held(plan) == ([f"held({made.name})"] if budget else [])
    assert all(rule.budgets in ({}, {JOB: ONE}) for rule in compile_policies([made], budget=ONE).rules)


def test_a_policy_that_the_command_line_names_has_its_budget_too() -> None:
    assert load_policy("autoscale(max_peers=4)").budget == Budget(24, 1200, 24)


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
    # The exchange goes first, so that nothing is left for the other one, which is told once.
    assert fired == [[True, False, True], [True, False, False], [True, False, False]]


def test_rules_of_two_budgets_are_held_back_each_by_its_own() -> None:
    plan = compile_policies([replace_stragglers(every=2), flapping()])
    assert [rule.budgets for rule in plan.rules if rule.mode == "acting"] == [
        {"replace_stragglers": Budget(8, 800, 8)},
        {"flapping": TWO},
    ]


def test_a_shadow_is_held_by_no_budget() -> None:
    plan = compile_policies([shadow(flapping())])
    assert [(rule.mode, dict(rule.budgets), "rescales_left" in rule.inputs) for rule in plan.rules] == [
        ("shadow", {}, False)
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
    # Beside the budget, each held rule has a fold that says whether it was told, and a size one of the last request.
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
    plan = compile_policies([first(flapping(), autoscale(max_peers=4))])
    assert "\n  budget of flapping: 2 rescales, and one more every 10 steps\n" in explain(plan)
    told = "24 rescales, and one more every 50 steps; apart from them 24 replacements, and one more every 50 steps"
    assert f"\n  budget of autoscale: {told}\n" in explain(plan)
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
