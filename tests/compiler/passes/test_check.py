"""The check: every ill-formed policy is stopped before the first step, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.control import Rule
from kungfu.errors import PolicyError
from kungfu.policies import gns_batch, schedule
from kungfu.policy import Policy, policy


def compiled(make: Callable[[Any], Any]) -> None:
    compile_policies([Policy("mine", make)])


def test_a_size_made_of_a_local_signal_names_it_and_the_collective_to_insert() -> None:
    with pytest.raises(PolicyError) as caught:
        compiled(lambda training: control.always().rescale(training.loss * 2))
    message = str(caught.value)
    assert "the size that policy 'mine' asks for is made of the local signal 'loss'" in message
    assert "test_check.py:" in message
    assert 'write ops.all_reduce(training.loss, "mean"), or use training.mean_loss' in message


def test_the_message_names_only_the_local_signals_that_no_collective_stands_above() -> None:
    def mixed(training: Any) -> Rule:
        return control.always().rescale(ops.all_reduce(training.loss, "sum") + training.busy_seconds)

    with pytest.raises(PolicyError) as caught:
        compiled(mixed)
    assert "'busy_seconds'" in str(caught.value)
    assert "'loss'" not in str(caught.value)


def test_a_named_local_signal_is_called_by_its_name() -> None:
    with pytest.raises(PolicyError, match=r'write ops.all_reduce\(slowness, "mean"\)$'):
        compiled(lambda training: control.always().rescale((training.busy_seconds * 2).named("slowness")))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda t: control.every(5).when(t.loss > 1).rescale(4),
            r"the .when\(...\) of policy 'mine' is made of the local",
        ),
        (lambda t: control.every(5).call(print, 1, t.rank), r"argument 2 of the call in policy 'mine' .* 'rank'"),
        (lambda t: control.every(5).call(print, t.loss.ema(0.1)), r"argument 1 .* the local signal 'loss'"),
        (lambda t: control.always().rescale(ops.all_gather(t.loss)), "is <agreed float32.size. signal.*not one number"),
        (
            lambda t: control.always().call(print, ops.norm_squared(t.grads)),
            r"use training.mean_grads, or reduce ops.norm",
        ),
        (lambda t: control.always().call(print, t.mean_grads), "argument 1 .* not one number; reduce it"),
    ],
)
def test_an_action_or_trigger_on_what_is_not_one_agreed_number_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        compiled(make)


@pytest.mark.parametrize(
    "gate",
    [
        lambda t: t.loss > 1,
        lambda t: t.mean_loss > 1,
        lambda t: t.step * 0.5 > 3,
        lambda t: t.pending,
    ],
)
def test_a_collective_under_a_gate_that_peers_could_see_differently_is_refused(gate: Any) -> None:
    def gated(training: Any) -> Rule:
        value = ops.all_reduce(training.loss - training.mean_loss, "sum")
        trigger = replace(control.always(), gate=gate(training))
        return trigger.rescale(value)

    with pytest.raises(PolicyError, match=r"the trigger of policy 'mine' runs where .* max_size, min_size, size, step"):
        compiled(gated)


def test_a_fold_under_such_a_gate_is_refused() -> None:
    def gated(training: Any) -> Rule:
        value = ops.all_reduce(training.loss, "sum").ema(0.1)
        return control.always().rescale(replace(value, gate=training.mean_loss > 0))

    with pytest.raises(PolicyError, match=r"<agreed float32 .* in policy 'mine' runs where .*\.when\(condition\)"):
        compiled(gated)


def test_two_policies_that_rescale_without_a_rule_are_both_named() -> None:
    with pytest.raises(PolicyError) as caught:
        compile_policies([gns_batch(max_peers=4), schedule({10: 2})])
    message = str(caught.value)
    assert "policies 'gns_batch', 'schedule' all rescale the cluster" in message
    assert "kf.at_most(gns_batch, schedule)" in message
    assert "kf.first(gns_batch, schedule)" in message


def test_one_policy_with_two_rules_that_rescale_is_a_conflict_too() -> None:
    @policy
    def torn(training: Any) -> tuple[Rule, ...]:
        return control.every(2).rescale(3), control.every(3).rescale(4)

    with pytest.raises(PolicyError, match="policies 'torn', 'torn' all rescale"):
        compile_policies([torn()])


def test_policies_that_only_call_never_conflict() -> None:
    def hooked(training: Any) -> Rule:
        return control.every(2).call(lambda control: None)

    plan = compile_policies([Policy("one", hooked), Policy("two", hooked), schedule({1: 2})])
    assert len(plan.rules) == 3


def test_a_rule_made_by_hand_is_held_to_its_types() -> None:
    def wrong(training: Any) -> Rule:
        rule = control.always().rescale(2)
        return replace(rule, fires=training.size)

    with pytest.raises(PolicyError, match=r"the decision of policy 'mine' is <agreed int64 signal.*; it must be bool"):
        compiled(wrong)
