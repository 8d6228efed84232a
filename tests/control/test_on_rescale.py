"""Rules on a rescale: what they may be made of, and what a barrier settles by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kungfu import control, ops
from kungfu.compiler import compile_policies, fired_on_rescale
from kungfu.control import SetGlobalBatchSize, SetLearningRate
from kungfu.errors import InternalError, PolicyError
from kungfu.policy_definition import Policy, at_most, compose, first, shadow

BARRIER = {
    "size": 4,
    "previous_size": 2,
    "step": 7,
    "global_batch_size": 64,
    "previous_global_batch_size": 32,
    "learning_rate": 0.25,
    "min_size": 1,
    "max_size": 8,
    "epoch_samples": 0,
}


def made(body: Any, *, name: str = "mine") -> Policy:
    def rules(training: Any) -> Any:
        given = body(training)
        return tuple(replace(one, name=name) for one in (given if isinstance(given, tuple) else (given,)))

    return Policy(name, rules)


def by_size(factor: float, *, name: str) -> Policy:
    return made(lambda t: control.on_rescale().set_global_batch_size(t.size * factor), name=name)


def settled(*policies: Policy, **changed: float) -> list[tuple[str, float]]:
    return [
        (one.rule, one.value) for one in fired_on_rescale(compile_policies(policies), {**BARRIER, **changed}, step=9)
    ]


def test_a_barrier_settles_the_batch_first_and_the_rate_by_it() -> None:
    def body(training: Any) -> Any:
        at_rescale = control.on_rescale()
        rate = training.learning_rate * training.global_batch_size / training.previous_global_batch_size
        return at_rescale.set_learning_rate(rate, over_samples=500), at_rescale.set_global_batch_size(128)

    batch, rate = fired_on_rescale(compile_policies([made(body)]), BARRIER, step=9)
    assert isinstance(batch.action, SetGlobalBatchSize)
    assert isinstance(rate.action, SetLearningRate)
    assert (batch.value, rate.value) == (128, 0.25 * 128 / 32)
    assert (rate.action.ramp_length, rate.action.unit) == (500, "samples")
    assert rate.inputs == {
        "learning_rate": 0.25,
        "global_batch_size": 128,
        "previous_global_batch_size": 32,
        "target": 1.0,
    }


def test_what_is_so_already_or_undefined_is_not_settled() -> None:
    assert settled(by_size(16, name="same")) == []
    unknown = made(
        lambda t: control.on_rescale().set_global_batch_size(ops.where(t.size > 0, float("nan"), 1.0)), name="undefined"
    )
    assert settled(unknown) == []
    assert settled(by_size(8, name="other")) == [("other", 32)]


def test_a_batch_has_a_sample_for_each_peer() -> None:
    assert settled(by_size(0.1, name="tiny")) == [("tiny", 4)]


def test_a_condition_decides_whether_anything_is_settled() -> None:
    def body(training: Any) -> Any:
        return control.on_rescale().when(training.size > training.previous_size).set_global_batch_size(100)

    assert settled(made(body)) == [("mine", 100)]
    assert settled(made(body), previous_size=6) == []


def test_rules_on_a_rescale_are_no_part_of_a_step() -> None:
    plan = compile_policies([by_size(8, name="other")])
    assert (plan.rules, plan.nodes, [one.name for one in plan.on_rescale]) == ((), (), ["other"])


def test_a_shadow_is_settled_apart() -> None:
    plan = compile_policies([compose(by_size(8, name="real"), shadow(by_size(9, name="tried")))])
    assert [one.value for one in fired_on_rescale(plan, BARRIER, step=9)] == [32]
    assert [(one.rule, one.value) for one in fired_on_rescale(plan, BARRIER, step=9, mode="shadow")] == [
        ("shadow(tried)", 36)
    ]


def test_combined_rules_choose_among_the_requests_of_this_barrier() -> None:
    small, large, none = by_size(5, name="small"), by_size(10, name="large"), by_size(float("nan"), name="none")
    assert settled(at_most(large, small)) == [("at_most(large, small)", 20)]
    assert settled(first(none, large, small)) == [("first(none, large, small)", 40)]
    assert settled(at_most(none, large, small)) == [("at_most(none, large, small)", 20)]


def test_two_that_settle_the_same_are_refused_by_name() -> None:
    with pytest.raises(PolicyError, match="policies 'one', 'other' all set the global batch size"):
        compile_policies([by_size(5, name="one"), by_size(6, name="other")])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (lambda t: control.on_rescale().set_global_batch_size(t.mean_loss), "training.mean_loss"),
        (lambda t: control.on_rescale().set_global_batch_size(t.loss), "training.loss"),
        (lambda t: control.on_rescale().when(t.samples_done > 4).set_global_batch_size(3), "training.samples_done"),
        (lambda t: control.on_rescale().set_learning_rate(t.learning_rate.ema(0.5)), "<agreed float32 signal"),
    ],
)
def test_what_a_barrier_does_not_know_is_refused_by_name(body: Any, named: str) -> None:
    with pytest.raises(PolicyError, match=f"policy 'mine' uses {named} .* in a rule on a rescale, which is settled"):
        compile_policies([made(body)])


def test_a_barrier_that_does_not_tell_what_is_read_is_a_defect() -> None:
    with pytest.raises(InternalError, match=r"did not offer \['epoch_samples', 'size'\]"):
        fired_on_rescale(compile_policies([by_size(8, name="other")]), {"global_batch_size": 3}, step=9)


def test_only_settings_hang_on_a_rescale() -> None:
    offered = {one for one in dir(control.on_rescale()) if not one.startswith("_")}
    assert offered == {"predicate", "when", "set_global_batch_size", "set_learning_rate"}
