"""Rules: when a rescale fires, and what a rule shows to the log."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu import control, ops
from kungfu.compiler import Outcome, compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control.rule import call_rule, distinct_name, inputs_under
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy
from kungfu.signal import TrainingSignals

training = TrainingSignals()
CALM = {"step": 1, "size": 2, "min_size": 1, "max_size": 4, "refused_size": 0, "pending": False, "mean_loss": 3.0}


def decided(rule: control.Rule, **changed: Any) -> Outcome:
    """What the rule decides in one step of a cluster of two."""
    plan = compile_policies([Policy("alone", lambda training: rule)])
    return Replay(plan, size=2).step([{}, {}], {**CALM, **changed})


@pytest.mark.parametrize(
    ("wanted", "changed", "target"),
    [
        (3.0, {}, 3),
        (2.6, {}, 3),
        (9.0, {}, 4),
        (0.0, {}, 1),
        (math.inf, {}, None),
        (math.nan, {}, None),
        (2.4, {}, None),
        (3.0, {"pending": True}, None),
        (3.0, {"refused_size": 3}, None),
        (9.0, {"refused_size": 4}, None),
        (9.0, {"max_size": 2}, None),
        (3.0, {"step": 2}, 3),
    ],
)
def test_a_rescale_fires_for_news_within_the_limits_only(wanted: float, changed: dict[str, Any], target: Any) -> None:
    measured = ops.where(training.mean_loss > 0, wanted, 1.0)  # a constant that is none is refused
    outcome = decided(control.always().rescale(measured), **changed)
    assert outcome.fired.tolist() == [target is not None]
    np.testing.assert_array_equal(outcome.targets, [math.nan if target is None else target])


def test_a_rescale_waits_for_its_gate() -> None:
    rule = control.every(3).rescale(4)
    assert [bool(decided(rule, step=step).fired[0]) for step in range(1, 7)] == [False, False, True] * 2


def test_a_rescale_waits_for_its_condition() -> None:
    rule = control.always().when(training.mean_loss < 2).rescale(4)
    assert [bool(decided(rule, mean_loss=loss).fired[0]) for loss in (3.0, 1.0, math.nan)] == [False, True, False]


def test_a_call_fires_by_gate_and_condition_and_not_while_a_change_is_due() -> None:
    rule = control.every(2).when(training.mean_loss > 2).call(lambda control, loss: None, training.mean_loss)
    tried = [{"step": 2}, {"step": 3}, {"step": 2, "mean_loss": 1.0}, {"step": 2, "change_due": True}]
    assert [bool(decided(rule, **one).fired[0]) for one in tried] == [True, False, False, False]
    assert math.isnan(decided(rule, step=2).targets[0])


def test_the_values_of_a_call_are_what_it_saw_in_order() -> None:
    rule = control.always().call(lambda control, a, b, c: None, training.mean_loss, training.step, 7)
    assert list(rule.inputs) == ["mean_loss", "step", "c"]
    assert decided(rule).inputs.tolist() == [3.0, 1.0, 7.0]


def test_two_arguments_of_one_name_are_told_apart() -> None:
    rule = control.always().call(lambda control, a, b: None, training.step, training.step)
    assert list(rule.inputs) == ["step", "step_2"]
    assert decided(rule).inputs.tolist() == [1.0, 1.0]


def test_arguments_of_a_function_that_takes_any_are_numbered() -> None:
    rule = control.always().call(lambda *values: None, training.mean_loss * 2, training.mean_loss * 3)
    assert list(rule.inputs) == ["argument_1", "argument_2"]


def test_a_function_that_cannot_be_called_so_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"takes \(control\), and it would be called as fn\(control, argument_1\)"):
        control.always().call(lambda control: None, training.mean_loss)


def test_what_is_no_function_cannot_be_called() -> None:
    with pytest.raises(PolicyError, match=r"call\(3\): the first argument must be a function"):
        call_rule(3, (), trigger=control.always())  # type: ignore[arg-type]  # what a user might write


def test_a_log_sees_names_and_the_sources_that_stand_under_no_name() -> None:
    noise = ((training.mean_loss + training.total_samples) * 2).named("noise")
    assert list(inputs_under(noise / training.local_batch_size)) == ["noise", "local_batch_size"]


def test_a_log_sees_a_source_that_stands_under_a_name_and_beside_it() -> None:
    size = training.size
    assert set(inputs_under((size * 2).named("twice") + size)) == {"twice", "size"}


def test_a_log_sees_nothing_local() -> None:
    assert list(inputs_under(ops.all_reduce(training.loss, "mean") * training.step)) == ["step"]


def test_a_rescale_logs_what_its_target_is_made_of_and_the_target() -> None:
    rule = control.always().rescale(training.mean_loss * 2)
    assert list(rule.inputs) == ["mean_loss", "size", "target"]


def test_a_taken_name_gets_the_first_free_number() -> None:
    assert distinct_name("a", taken={"a", "a_2"}) == "a_3"
    assert distinct_name("b", taken={"a"}) == "b"


# ---- what a rule shows -----------------------------------------------------------------------------------------------


def test_a_rule_shows_what_it_is_told_to_in_place_of_what_its_target_is_made_of() -> None:
    rule = (
        control.always()
        .rescale(training.mean_loss.ema(0.5).named("smooth"))
        .showing(loss_now=training.mean_loss, two=2)
    )
    assert list(rule.inputs) == ["loss_now", "two", "size", "target"]
    assert decided(rule).inputs.tolist() == [3.0, 2.0, 2.0, 3.0]
    called = control.always().call(lambda control, loss: None, training.mean_loss).showing(step_now=training.step)
    assert list(called.inputs) == ["mean_loss", "step_now"]


@pytest.mark.parametrize("shown", [training.loss, ops.ranks()])
def test_what_peers_do_not_agree_on_or_is_no_number_cannot_be_shown(shown: Any) -> None:
    with pytest.raises(
        PolicyError, match=r"showing\(seen=...\): takes one number that all peers agree on, and this is <"
    ):
        control.always().rescale(2).showing(seen=shown)
