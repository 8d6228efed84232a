"""Policies: how they are made, how several share a job, and who won: sizes, settings of every kind, terms, shadows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu import control
from kungfu.compiler import Outcome, compile_policies, explain
from kungfu.compiler.replay import Replay
from kungfu.control.rule import verdict
from kungfu.errors import PolicyError
from kungfu.policies import autoscale, gns_batch, schedule
from kungfu.policy_definition import Policy, at_least, at_most, compose, first, policy, shadow
from kungfu.signal import TrainingSignals

CALM = {"min_size": 1, "max_size": 8, "refused_size": 0, "pending": False, "mean_loss": 0.0, "total_samples": 0.0}
SETTINGS = {"epoch_samples": 0, "global_batch_size": 64, "learning_rate": 0.5}


@policy
def by_loss(training: Any, *, every: int = 1, keep: str = "local_batch_size") -> Any:
    return control.every(every).rescale(training.mean_loss, keep=keep)


@policy
def by_samples(training: Any, *, every: int = 1) -> Any:
    return control.every(every).rescale(training.total_samples)


def played(made: Policy, steps: list[dict[str, Any]], *, size: int = 2) -> list[Outcome]:
    """Consecutive steps of a cluster whose size does not change."""
    replay, known = Replay(compile_policies([made]), size=size), {**CALM, **SETTINGS}
    return [replay.step([{}] * size, {**known, "step": number, **one}) for number, one in enumerate(steps, start=1)]


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
    outcomes = played(made, [{"mean_loss": loss, "total_samples": samples} for loss, samples in steps])
    return [float(one.targets[0]) for one in outcomes]


def test_calling_a_policy_with_its_settings_gives_a_named_value() -> None:
    made = by_loss(every=3)
    assert isinstance(made, Policy)
    assert made.name == "by_loss"
    assert by_loss.__name__ == "by_loss"


def test_rules_carry_the_name_of_their_policy() -> None:
    @policy
    def two(training: Any) -> Any:
        return control.always().rescale(3), control.always().call(lambda control: None)

    assert [one.name for one in two().build(TrainingSignals())] == ["two", "two"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evry": 3}, r"there is no argument 'evry'; 'every' may be meant; it takes \(.*every: .* = 1"),
        ({"every": 3, "peers": 2}, r"there is no argument 'peers'; it takes \(.*every: .* = 1"),
    ],
)
def test_an_unknown_setting_is_refused_at_once_with_the_known_ones(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=f"by_loss: {message}"):
        by_loss(**settings)


def test_a_misspelt_setting_is_named_before_the_one_that_is_missing() -> None:
    with pytest.raises(PolicyError, match=r"'max_peer'; 'max_peers' may be meant; .*test_combine\.py:\d+\)$") as caught:
        gns_batch(max_peer=4)
    assert caught.value.origin in str(caught.value)


def test_a_missing_setting_is_refused_at_once() -> None:
    with pytest.raises(PolicyError, match=r"autoscale: missing a required .*'max_peers'"):
        autoscale()


def test_a_policy_is_a_function_of_training() -> None:
    with pytest.raises(PolicyError, match=r"@policy wrong\(\*, every: .*\).*the first parameter receives the signals"):

        @policy
        def wrong(*, every: int) -> Any: ...


NOTHING = (math.nan, math.nan)


@pytest.mark.parametrize(
    ("made", "steps", "expected"),
    [
        (at_most(by_loss(), by_samples()), [(5, 7), (5, 3)], [5, 3]),  # the smallest
        # A policy that has not requested anything yet holds the present size, and the last request of one stands.
        (at_most(by_loss(), by_samples()), [(math.nan, 7), (math.nan, 1), (6, 7)], [math.nan, 1, 6]),
        (at_most(by_loss(), by_samples()), [(6, 7), NOTHING], [6, 6]),
        # Between the steps of its trigger too.
        (at_most(by_loss(every=2), by_samples()), [(5, 8), (6, 8), (3, 8), (7, 8)], [math.nan, 6, 6, 7]),
        # The earlier policy, from its first request on.
        (first(by_loss(), by_samples()), [(math.nan, 3), (6, 3), (math.nan, 4)], [3, 6, 6]),
        *((choice(by_loss(), by_samples()), [NOTHING], [math.nan]) for choice in (at_most, first)),
        (first(at_most(by_loss(), by_samples()), schedule({1: 2})), [(4, 5)], [4]),
        # Batches; under at_least, the last requests 40 and 64 come to the batch that is.
        *(
            (choice(batch_by_loss(), batch_by_samples()), [(96, 16), (math.nan, 48), (40, 64)], expected)
            for choice, expected in ((at_most, [16, 48, 40]), (at_least, [96, 96, math.nan]), (first, [96, 96, 40]))
        ),
        (at_most(batch_by_loss(), batch_by_samples()), [(math.nan, 96)], [math.nan]),
        (at_least(batch_by_loss(), batch_by_samples()), [(math.nan, 32)], [math.nan]),
        # Learning rates.
        *(
            (choice(rate_by_loss(), rate_by_samples()), [(1.0, 0.25)], [expected])
            for choice, expected in ((at_most, 0.25), (at_least, 1.0), (first, 1.0))
        ),
    ],
)
def test_of_standing_requests_the_chosen_one_is_followed(
    made: Policy, steps: list[tuple[float, float]], expected: list[float]
) -> None:
    np.testing.assert_array_equal(targets(made, *steps), expected)


def test_a_request_made_while_a_change_was_pending_is_served_later() -> None:
    steps = [{"mean_loss": 5.0, "pending": True}, {"mean_loss": math.nan}]
    outcomes = played(at_most(by_loss(), schedule({1: 6})), steps)
    assert [bool(one.fired[0]) for one in outcomes] == [False, True]
    assert outcomes[1].targets[0] == 5


def test_the_log_shows_each_request_under_the_name_of_its_policy() -> None:
    plan = compile_policies([at_most(gns_batch(max_peers=8), schedule({1: 3}))])
    seen = ("noise_scale", "noise_scale_error", "local_batch_size", "step")
    merged = (*seen, "gns_batch", "schedule", "size", "target", "rescales_left")
    assert [tuple(one.inputs) for one in plan.rules] == [merged, merged]
    assert [one.name for one in plan.rules] == ["at_most(gns_batch, schedule)", "held(at_most(gns_batch, schedule))"]


def test_two_requests_of_one_policy_are_told_apart() -> None:
    made = first(schedule({3: 4}), schedule({1: 3}))
    names = list(compile_policies([made]).rules[0].inputs)
    shown = [dict(zip(names, one.inputs.tolist(), strict=True)) for one in played(made, [{}, {}, {}])]
    assert [(math.isnan(one["schedule"]), one["schedule_2"]) for one in shown] == [(True, 3), (True, 3), (False, 3)]
    assert [one["target"] for one in shown] == [3, 3, 4]


def test_other_actions_of_combined_policies_pass_through() -> None:
    @policy
    def hooked(training: Any) -> Any:
        return control.always().rescale(3), control.every(2).call(lambda control, loss: None, training.mean_loss)

    fired = [one.fired.tolist() for one in played(at_most(hooked(), by_samples()), [{}, {}])]
    assert fired == [[True, False], [True, True]]


def test_combinations_are_named_after_their_policies() -> None:
    nested = first(at_most(by_loss(), by_samples()), schedule({1: 2}))
    assert nested.name == "first(at_most(by_loss, by_samples), schedule)"


def test_policies_that_keep_different_batch_sizes_cannot_share() -> None:
    made = at_most(by_loss(keep="global_batch_size"), by_samples())
    with pytest.raises(PolicyError, match="by_loss keeps global_batch_size, by_samples keeps local_batch_size"):
        compile_policies([made])


@pytest.mark.parametrize(
    ("combine", "policies", "message"),
    [
        (at_most, [by_loss()], "at_most: takes at least two policies, got 1"),
        (first, [by_loss, by_samples()], r"first\(<function by_loss .*takes policies, as in first\(gns_batch"),
        *((combine, [schedule], "takes policies, as in") for combine in (compose, shadow)),
        (compose, [], r"compose\(\): takes policies, got none"),
    ],
)
def test_combinations_take_policies_and_nothing_else(combine: Any, policies: list[Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        combine(*policies)


def test_combining_policies_that_do_not_rescale_is_refused() -> None:
    @policy
    def hooked(training: Any) -> Any:
        return control.always().call(lambda control: None)

    with pytest.raises(PolicyError, match=r"at_most\(hooked, hooked\): none of these policies rescales"):
        compile_policies([at_most(hooked(), hooked())])


# ---- settings, terms and shadows -------------------------------------------------------------------------------------


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
    assert [(one.name, one.mode) for one in plan.rules] == [("schedule", "acting"), ("shadow(schedule)", "shadow")]


def test_a_shadow_tells_each_number_once_though_nobody_heeds_it() -> None:
    outcomes = played(shadow(schedule({2: 4, 5: 3, 6: 4})), [{}] * 7)
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
