"""Policies: how they are made, and how several share one cluster."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu import control
from kungfu.compiler import Outcome, compile_policies
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import Policy, at_most, first, policy
from kungfu.signal import TrainingSignals

CALM = {"min_size": 1, "max_size": 8, "refused_size": 0, "pending": False, "mean_loss": 0.0, "total_samples": 0.0}


@policy
def by_loss(training: Any, *, every: int = 1, keep: str = "local_batch_size") -> Any:
    return control.every(every).rescale(training.mean_loss, keep=keep)


@policy
def by_samples(training: Any, *, every: int = 1) -> Any:
    return control.every(every).rescale(training.total_samples)


def played(made: Policy, steps: list[dict[str, Any]], *, size: int = 2) -> list[Outcome]:
    """Consecutive steps of a cluster whose size does not change."""
    replay = Replay(compile_policies([made]), size=size)
    return [replay.step([{}] * size, {**CALM, "step": number, **one}) for number, one in enumerate(steps, start=1)]


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


def test_a_misspelt_setting_is_told_before_the_one_that_is_missing() -> None:
    with pytest.raises(PolicyError, match=r"'max_peer'; 'max_peers' may be meant; .*test_combine\.py:\d+\)$") as caught:
        gns_batch(max_peer=4)
    assert caught.value.origin in str(caught.value)


def test_a_missing_setting_is_refused_at_once() -> None:
    with pytest.raises(PolicyError, match=r"gns_batch: missing a required .*'max_peers'"):
        gns_batch()


def test_a_policy_is_a_function_of_training() -> None:
    with pytest.raises(PolicyError, match=r"@policy wrong\(\*, every: .*\).*the first parameter must be `training`"):

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
    ],
)
def test_of_standing_requests_the_chosen_one_is_followed(
    made: Policy, steps: list[tuple[float, float]], expected: list[float]
) -> None:
    outcomes = played(made, [{"mean_loss": loss, "total_samples": samples} for loss, samples in steps])
    np.testing.assert_array_equal([one.targets[0] for one in outcomes], expected)


def test_a_request_made_while_a_change_was_pending_is_served_later() -> None:
    steps = [{"mean_loss": 5.0, "pending": True}, {"mean_loss": math.nan}]
    outcomes = played(at_most(by_loss(), schedule({1: 6})), steps)
    assert [bool(one.fired[0]) for one in outcomes] == [False, True]
    assert outcomes[1].targets[0] == 5


def test_the_log_shows_each_request_under_the_name_of_its_policy() -> None:
    plan = compile_policies([at_most(gns_batch(max_peers=8), schedule({1: 3}))])
    merged = ("noise_scale", "local_batch_size", "step", "gns_batch", "schedule", "size", "target", "rescales_left")
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
    assert (
        first(at_most(by_loss(), by_samples()), schedule({1: 2})).name
        == "first(at_most(by_loss, by_samples), schedule)"
    )


def test_policies_that_keep_different_batch_sizes_cannot_share() -> None:
    made = at_most(by_loss(keep="global_batch_size"), by_samples())
    with pytest.raises(PolicyError, match="by_loss keeps global_batch_size, by_samples keeps local_batch_size"):
        compile_policies([made])


def test_combining_takes_at_least_two_policies_and_nothing_else() -> None:
    with pytest.raises(PolicyError, match="at_most: takes at least two policies, got 1"):
        at_most(by_loss())
    with pytest.raises(PolicyError, match=r"first\(<function by_loss .*takes policies, as in first\(gns_batch"):
        first(by_loss, by_samples())  # type: ignore[arg-type]  # what a user might write


def test_combining_policies_that_do_not_rescale_is_refused() -> None:
    @policy
    def hooked(training: Any) -> Any:
        return control.always().call(lambda control: None)

    with pytest.raises(PolicyError, match=r"at_most\(hooked, hooked\): none of these policies rescales"):
        compile_policies([at_most(hooked(), hooked())])
