"""The check: every ill-formed policy is stopped before the first step, with what to write instead."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.control import Rule
from kungfu.errors import PolicyError
from kungfu.policies import schedule
from kungfu.policy_definition import Policy


def compiled(make: Callable[[Any], Any]) -> None:
    compile_policies([Policy("mine", make)])


def refusal(make: Callable[[Any], Any]) -> str:
    with pytest.raises(PolicyError) as caught:
        compiled(make)
    return str(caught.value)


def test_the_message_names_only_the_local_signals_that_no_collective_stands_above() -> None:
    message = refusal(lambda t: control.always().rescale(ops.all_reduce(t.loss, "sum") + t.busy_seconds))
    assert "'busy_seconds'" in message
    assert "'loss'" not in message


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
            r"use training.mean_grads, or reduce kf.ops.norm",
        ),
        (lambda t: control.always().call(print, t.mean_grads), "argument 1 .* not one number; reduce it"),
    ],
)
def test_an_action_or_trigger_on_what_is_not_one_agreed_number_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        compiled(make)


@pytest.mark.parametrize(
    "gate", [lambda t: t.loss > 1, lambda t: t.mean_loss > 1, lambda t: t.step * 0.5 > 3, lambda t: t.pending]
)
def test_a_collective_under_a_gate_that_peers_could_see_differently_is_refused(gate: Any) -> None:
    def gated(training: Any) -> Rule:
        return replace(control.always(), gate=gate(training)).rescale(ops.all_reduce(training.loss, "sum"))

    with pytest.raises(PolicyError, match=r"the trigger of policy 'mine' runs where .* max_size, min_size, size, step"):
        compiled(gated)


def test_policies_that_only_call_never_conflict() -> None:
    def hooked(training: Any) -> Rule:
        return control.every(2).call(lambda control: None)

    plan = compile_policies([Policy("one", hooked), Policy("two", hooked), schedule({1: 2})])
    assert len(plan.rules) == 3


def test_a_rule_made_by_hand_is_held_to_its_types() -> None:
    with pytest.raises(PolicyError, match=r"the decision of policy 'mine' is <agreed int64 signal.*; it must be bool"):
        compiled(lambda training: replace(control.always().rescale(2), fires=training.size))


# ---- in the user's own words ---------------------------------------------------------------------------------------


def test_a_local_signal_is_called_by_the_users_variable_and_line() -> None:
    def slow(training: Any) -> Rule:
        slowness = training.busy_seconds * 2
        return control.always().rescale(slowness)

    message = refusal(slow)
    assert 'write kf.ops.all_reduce(slowness, "mean")' in message
    line = slow.__code__.co_firstlineno + 1
    assert f"the local signal 'busy_seconds' ({__file__}:{line})" in message


def test_what_the_user_asked_for_is_called_by_its_variable_too() -> None:
    def slow(training: Any) -> Rule:
        slow_enough = (
            training.busy_seconds
            > 2
        )  # fmt: skip
        return control.always().when(slow_enough).rescale(4)

    with pytest.raises(PolicyError, match=r"policy 'mine', `slow_enough` \(.*_check.py:\d+\), is made of the local"):
        compiled(slow)


def test_a_statement_that_makes_a_rule_names_no_signal() -> None:
    def slow(training: Any) -> tuple[Rule, ...]:
        rule = control.always().rescale(training.busy_seconds * 2)
        return (rule,)

    message = refusal(slow)
    assert "`rule`" not in message
    assert "ops.all_reduce(training.busy_seconds" in message


def test_a_policy_whose_source_cannot_be_read_is_refused_all_the_same() -> None:
    scope: dict[str, Any] = {"control": control}
    source = "def typed(training):\n    x = training.loss\n    return control.always().rescale(x)"
    exec(compile(source, "<stdin>", "exec"), scope)
    message = refusal(scope["typed"])
    assert "the size that policy 'mine' asks for is made of the local signal 'loss' (<stdin>:2)" in message
    assert 'write kf.ops.all_reduce(training.loss, "mean"), or use training.mean_loss' in message


# ---- gates ---------------------------------------------------------------------------------------------------------


def test_a_collective_under_a_local_gate_names_the_gate_and_how_it_becomes_agreed() -> None:
    def gated(training: Any) -> Rule:
        late = training.busy_seconds > 1
        value = ops.all_reduce(training.loss, "sum").ema(0.5).gated(late)
        return control.always().rescale(value)

    message = refusal(gated)
    assert "runs where `late` (<local bool signal" in message
    assert "made of the local signal 'busy_seconds'" in message
    assert 'first make it agreed: write kf.ops.all_reduce(training.busy_seconds, "mean")' in message


def test_an_agreed_gate_that_is_not_exact_is_refused_unless_it_is_carried() -> None:
    def gated(training: Any, *, on: Any) -> Rule:
        return control.always().rescale(ops.all_reduce(training.loss, "sum").ema(0.5).gated(on))

    message = refusal(lambda t: gated(t, on=t.mean_loss > 0))
    assert re.search(r"<agreed float32 .* in policy 'mine' runs where .*a function, in whole numbers, of ", message)
    assert re.search(r"\.when\(condition\), or write kf.ops.synchronized\(condition\)$", message)
    compiled(lambda t: gated(t, on=ops.synchronized(t.mean_loss > 0)))


# ---- whose signal it is --------------------------------------------------------------------------------------------


def test_a_signal_of_one_attach_used_in_another_is_refused_by_its_line() -> None:
    kept: list[Any] = []

    def first_job(training: Any) -> Rule:
        kept.append(training.mean_loss)
        return control.always().rescale(2)

    def second_job(training: Any) -> Rule:
        return control.always().when(kept[0] > 1).rescale(training.size + 1)

    compiled(first_job)
    with pytest.raises(PolicyError, match=r"policy 'mine' uses training.mean_loss \(.*:\d+\) of another attach"):
        compiled(second_job)


def test_policies_of_one_attach_may_share_signals() -> None:
    kept: list[Any] = []

    def one(training: Any) -> Rule:
        kept.append(training.mean_loss * 2)
        return control.always().call(lambda control: None)

    def other(training: Any) -> Rule:
        return control.always().when(kept[-1] > 1).rescale(2)

    for _ in range(2):
        compile_policies([Policy("one", one), Policy("other", other)])


# ---- bounds --------------------------------------------------------------------------------------------------------


def unclipped(size: Any) -> Rule:
    """A rule that requests this size, without the bounds that `rescale` adds."""
    return replace(control.always().rescale(2), action=control.Rescale(size, "local_batch_size"))


@pytest.mark.parametrize(
    ("make", "side"),
    [
        (lambda t: t.mean_loss, "lower"),
        (lambda t: ops.maximum(t.mean_loss, 1), "upper"),
        (lambda t: ops.minimum(t.mean_loss, 8), "lower"),
        (lambda t: ops.where(t.pending, 4, t.mean_loss), "lower"),
        (lambda t: t.step, "upper"),
        (lambda t: ops.clip(t.mean_loss, 1, math.inf), "upper"),
        (lambda t: t.size - t.mean_loss, "lower"),
    ],
)
def test_a_size_without_a_bound_is_refused(make: Callable[[Any], Any], side: str) -> None:
    with pytest.raises(PolicyError, match=rf"the size that policy 'mine' asks for has no {side} bound: .*ops.clip"):
        compiled(lambda training: unclipped(ops.round(make(training))))


@pytest.mark.parametrize(
    "make",
    [
        lambda t: ops.clip(ops.round(t.mean_loss), t.min_size, t.max_size),
        lambda t: ops.round(ops.minimum(ops.maximum(t.mean_loss, 1), 8)),
        lambda t: ops.where(t.pending, ops.round(t.size), 4.0),
        lambda t: ops.round(t.size + 1),
        lambda t: ops.round(2 * t.size - 1),
        lambda t: ops.where(t.pending, 4.0, math.nan),
    ],
)
def test_a_size_between_bounds_is_accepted(make: Callable[[Any], Any]) -> None:
    compiled(lambda training: unclipped(make(training)))
