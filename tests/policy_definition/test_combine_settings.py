"""How policies share a job: settings of every kind, terms, shadows, and who won."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu import control
from kungfu.compiler import compile_policies, explain
from kungfu.compiler.replay import Replay
from kungfu.control.rule import verdict
from kungfu.errors import PolicyError
from kungfu.policies import schedule
from kungfu.policy_definition import Policy, at_least, at_most, compose, first, policy, shadow

CALM = {
    "min_size": 1,
    "max_size": 8,
    "refused_size": 0,
    "epoch_samples": 0,
    "pending": False,
    "global_batch_size": 64,
    "learning_rate": 0.5,
    "mean_loss": math.nan,
    "total_samples": math.nan,
}


@policy
def batch_by_loss(training: Any) -> Any:
    return control.always().set_global_batch_size(training.mean_loss)


@policy
def batch_by_samples(training: Any) -> Any:
    return control.always().set_global_batch_size(training.total_samples)


@policy
def rate_by_loss(training: Any, *, over_steps: float = 0) -> Any:
    return control.always().set_learning_rate(training.mean_loss, over_steps=over_steps)


@policy
def rate_by_samples(training: Any) -> Any:
    return control.always().set_learning_rate(training.total_samples)


def targets(made: Policy, *steps: tuple[float, float]) -> list[float]:
    """What a combined rule asks for, where the loss and the number of samples are these in consecutive steps."""
    replay = Replay(compile_policies([made]), size=2)
    return [
        float(replay.step([{}, {}], {**CALM, "step": n, "mean_loss": a, "total_samples": b}).targets[0])
        for n, (a, b) in enumerate(steps, start=1)
    ]


@pytest.mark.parametrize(
    ("rule", "expected"), [(at_most, [16, 48, 40]), (at_least, [96, 96, math.nan]), (first, [96, 96, 40])]
)
def test_a_batch_is_chosen_among_the_standing_requests(rule: Any, expected: list[float]) -> None:
    made = rule(batch_by_loss(), batch_by_samples())
    # Under at_least, the last requests 40 and 64 come to the batch that is.
    np.testing.assert_array_equal(targets(made, (96, 16), (math.nan, 48), (40, 64)), expected)


@pytest.mark.parametrize(("rule", "expected"), [(at_most, 0.25), (at_least, 1.0), (first, 1.0)])
def test_a_learning_rate_is_chosen_among_the_standing_requests(rule: Any, expected: float) -> None:
    assert targets(rule(rate_by_loss(), rate_by_samples()), (1.0, 0.25)) == [expected]


@pytest.mark.parametrize(("rule", "asked"), [(at_most, (math.nan, 96.0)), (at_least, (math.nan, 32.0))])
def test_a_policy_that_has_not_asked_yet_holds_what_is(rule: Any, asked: tuple[float, float]) -> None:
    assert math.isnan(targets(rule(batch_by_loss(), batch_by_samples()), asked)[0])


def test_settings_are_chosen_each_for_itself_and_what_one_alone_sets_passes_through() -> None:
    def both(training: Any) -> Any:
        return control.always().rescale(3), control.always().set_global_batch_size(24)

    def other(training: Any) -> Any:
        return control.every(2).set_global_batch_size(12), control.always().set_learning_rate(0.25)

    plan = compile_policies([at_most(Policy("both", both), Policy("other", other))])
    assert [one.name for one in plan.rules] == ["rescale", "at_most(both, other)", "set_learning_rate"]


def test_rates_that_move_on_other_terms_cannot_share() -> None:
    made = first(rate_by_loss(over_steps=10), rate_by_samples())
    with pytest.raises(
        PolicyError, match="rate_by_loss moves the rate over 10 steps, rate_by_samples moves the rate over 0 steps"
    ):
        compile_policies([made])


@pytest.mark.parametrize(
    ("one", "other", "does"),
    [
        (batch_by_loss(), batch_by_samples(), "set the global batch size"),
        (rate_by_loss(), rate_by_samples(), "set the learning rate"),
        (schedule({1: 2}), schedule({2: 3}), "rescale the cluster"),
    ],
)
def test_two_that_set_the_same_are_refused_by_name(one: Policy, other: Policy, does: str) -> None:
    names = f"'{one.name}', '{other.name}'"
    for policies in ([one, other], [compose(one, other)]):
        with pytest.raises(PolicyError, match=f"policies {names} all {does} .*write kf.at_most.*kf.at_least.*kf.first"):
            compile_policies(policies)


def test_composed_policies_are_as_good_as_listed_ones() -> None:
    parts = [schedule({1: 3}), rate_by_loss()]
    assert explain(compile_policies([compose(*parts)])) == explain(compile_policies(parts))


def test_a_shadow_conflicts_with_none_and_does_not_act() -> None:
    plan = compile_policies([schedule({1: 3}), shadow(schedule({2: 4}))])
    assert [(one.name, one.mode) for one in plan.rules] == [
        ("schedule", "acting"),
        ("shadow(schedule)", "shadow"),
    ]


def test_a_shadow_tells_each_number_once_though_nobody_heeds_it() -> None:
    replay = Replay(compile_policies([shadow(schedule({2: 4, 5: 3, 6: 4}))]), size=2)
    outcomes = [replay.step([{}, {}], {**CALM, "step": step}) for step in range(1, 8)]
    assert [step for step, one in enumerate(outcomes, start=1) if one.fired[0]] == [2, 5, 6]


def test_shadows_stay_out_of_a_choice() -> None:
    plan = compile_policies([first(schedule({1: 3}), shadow(schedule({1: 5})), schedule({1: 4}))])
    assert [one.mode for one in plan.rules] == ["acting", "shadow"]
    assert plan.rules[0].candidates == ("schedule", "schedule_2")


def test_what_a_rule_saw_tells_who_won_and_who_lost() -> None:
    (rule,) = compile_policies([at_most(schedule({1: 5}), schedule({1: 3}), schedule({9: 2}))]).rules
    saw = {"schedule": 5.0, "schedule_2": 3.0, "schedule_3": math.nan, "size": 2.0, "target": 3.0}
    assert verdict(rule, saw) == (("schedule_2",), ("schedule",))
    assert verdict(compile_policies([schedule({1: 5})]).rules[0], {"size": 2.0, "target": 5.0}) == ((), ())


@pytest.mark.parametrize("make", [compose, shadow])
def test_only_policies_can_be_put_together(make: Any) -> None:
    with pytest.raises(PolicyError, match=r"takes policies, as in"):
        make(schedule)


def test_composing_nothing_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"compose\(\): takes policies, got none"):
        compose()
