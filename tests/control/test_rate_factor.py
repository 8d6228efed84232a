"""A factor on the learning rate: when its rule fires, on what it rides, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.compiler import CompiledPolicies, compile_policies, explain_json, fired_rules, summarize
from kungfu.compiler.replay import Replay
from kungfu.compiler.serialize import plan_from_json, plan_to_json
from kungfu.control import ScaleLearningRate
from kungfu.errors import PolicyError
from kungfu.policies import gns_batch
from kungfu.policy_definition import Policy
from kungfu.testing import ClusterModel, Start, run_on_model


@kf.policy
def of_step(training: Any, *, steps: int = 10) -> Any:
    return kf.control.learning_rate(1 - training.step / steps)


@kf.policy
def of_loss(training: Any) -> Any:
    return kf.control.learning_rate(training.mean_loss)


def in_force(policies: Policy | list[Policy], losses: list[float], *, size: int = 2) -> list[float]:
    """The factor on the rate of each step, in which the mean loss is one of these."""
    plan = compile_policies([policies] if isinstance(policies, Policy) else policies)
    replay, (place,) = Replay(plan, size=size), [at for at, one in enumerate(plan.watched_signals) if "factor" in one]
    found = []
    for step, loss in enumerate(losses, start=1):
        outcome = replay.step([{}] * size, {"step": step, "mean_loss": loss})
        found.append(float(outcome.watched[place]))
    return found


@pytest.mark.parametrize("size", [1, 3])
def test_a_factor_of_the_loss_is_of_the_next_step_and_one_of_the_step_its_own(size: int) -> None:
    assert in_force(of_loss(), [0.5, 0.25, 4.0, 2.0], size=size) == [1.0, 0.5, 0.25, 4.0]
    assert in_force(of_step(steps=4), [0.0] * 3, size=size) == [0.75, 0.5, 0.25]
    both = kf.Policy("both", lambda t: kf.control.learning_rate(t.mean_loss.ema(1.0).before_step()))
    assert in_force(both, [0.5, 0.25, 4.0], size=size) == [1.0, 0.5, 0.25], "the value before the step is known early"


NOT_USABLE = [math.nan, 0.5, math.nan, 0.0, -1.0, math.inf, 0.25]


def test_a_factor_that_is_not_usable_leaves_the_last_one_and_is_reported_once() -> None:
    assert in_force(of_loss(), [*NOT_USABLE, 1.0]) == [1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25]
    assert reported(NOT_USABLE) == [(3, math.nan)], "a signal may begin as NaN"
    assert reported([math.inf, 1.0, math.nan]) == [(1, math.inf)]
    assert reported([0.0, -2.0]) == [(1, 0.0)]
    assert reported([math.nan, math.nan]) == []


def reported(losses: list[float]) -> list[tuple[int, Any]]:
    plan = compile_policies([of_loss()])
    replay, found = Replay(plan, size=1), []
    for step, loss in enumerate(losses, start=1):
        fired = fired_rules(plan, replay.step([{}], {"step": step, "mean_loss": loss}), step=step)
        found += [(step, one.value) for one in fired if one.mode == "held"]
    return [(step, pytest.approx(value, nan_ok=True)) for step, value in found]


def test_a_policy_without_a_factor_sends_no_float_for_it_and_one_with_it_sends_one() -> None:
    plain, more = ([gns_batch(max_peers=8)], [gns_batch(max_peers=8), of_loss()])
    costs = [explain_json(compile_policies(one))["costs"] for one in (plain, more)]
    assert costs[1]["fixed_floats"] - costs[0]["fixed_floats"] == 1
    assert costs[1]["state_bytes"] - costs[0]["state_bytes"] == 7
    assert [one["messages_per_step"] + one["gated_messages"] for one in costs] == [0, 0]
    assert compile_policies(plain).rate_factor_index is None


def test_explain_says_what_is_multiplied_when_and_at_what_cost() -> None:
    text = summarize(compile_policies([of_loss()]))
    assert "asks for a factor on the learning rate of the next step: mean_loss; without a barrier" in text
    assert "1 float (4 bytes) per step on the gradient all-reduce" in text
    assert "learning rate of the same step: 1 - step / 10" in summarize(compile_policies([of_step()]))


def test_a_plan_with_a_factor_is_read_back() -> None:
    plan = compile_policies([gns_batch(max_peers=8), of_loss()])
    again: CompiledPolicies = plan_from_json(plan_to_json(plan))
    assert again.rate_factor_index == plan.rate_factor_index is not None


def test_a_merged_factor_is_the_chosen_one_and_of_the_next_step() -> None:
    losses = [0.5, 0.95, 0.125, math.nan]
    assert in_force(kf.at_most(of_step(), of_loss()), losses) == pytest.approx([1.0, 0.5, 0.8, 0.125])
    assert in_force(kf.at_least(of_step(), of_loss()), losses) == pytest.approx([1.0, 0.9, 0.95, 0.7])
    assert in_force(kf.first(of_loss(), of_step()), losses) == pytest.approx([1.0, 0.5, 0.95, 0.125])


def test_a_shadow_has_no_factor_and_stands_beside_one() -> None:
    plan = compile_policies([kf.shadow(of_step()), of_loss()])
    assert [(one.mode, one.posts, one.is_reported) for one in plan.rules] == [
        ("shadow", False, False), ("acting", False, False), ("held", False, True),
    ]  # fmt: skip
    (acting,) = [one.action for one in plan.rules if one.mode == "acting"]
    assert isinstance(acting, ScaleLearningRate)
    assert plan.piggybacked.scalars[plan.rate_factor_index or 0] is acting.in_force
    assert compile_policies([kf.shadow(of_step())]).rate_factor_index is None


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (lambda t: t.loss, r"the learning rate factor that policy 'wrong' asks for is made of the local signal 'loss'"),
        (lambda t: -0.5, "the learning rate factor that it asks for never is a finite number above 0"),
        (lambda t: math.nan, "can never fire"),
        (lambda t: kf.ops.all_gather(t.loss), r"learning_rate\(.*\): takes one number; reduce it"),
        (lambda t: t.previous_size * 1.0, "only a barrier that changes the size knows"),
    ],
)
def test_a_factor_that_cannot_be_is_refused_with_the_policy_and_the_line(factor: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message) as raised:
        compile_policies([Policy("wrong", lambda training: kf.control.learning_rate(factor(training)))])
    assert "test_rate_factor.py:" in str(raised.value)


def test_two_policies_with_a_factor_are_refused_and_a_rate_beside_one_is_not() -> None:
    with pytest.raises(PolicyError, match=r"'of_step', 'of_loss' all set the learning rate factor.*kf\.at_most"):
        compile_policies([of_step(), of_loss()])
    rate = Policy("rate", lambda training: kf.control.every(2).set_learning_rate(0.5))
    assert len(compile_policies([rate, of_loss()]).rules) == 3


def test_a_model_trains_at_the_rate_times_the_factor_and_holds_no_barrier_for_it() -> None:
    seen: list[float] = []

    def loss(at: Any) -> float:
        seen.append(at.learning_rate)
        return 2.0 ** -int(at)

    halved = Policy("halved", lambda training: kf.control.every(3).set_learning_rate(0.25))
    model = ClusterModel({1: 100}, steps=6, start=Start(learning_rate=0.5), loss_by_step=loss)
    run = run_on_model([of_loss(), halved], model)
    # The rate of the rule comes with the barrier after step 4.
    assert seen == [0.5, 0.25, 0.125, 0.0625, 0.25 / 16, 0.25 / 32]
    assert [(one.step, one.rule, one.unmet) for one in run.decisions if one.rule != "of_loss"] == [
        (3, "set_learning_rate", "")
    ]
    assert [one.value for one in run.decisions if one.rule == "of_loss"] == [2.0**-step for step in range(1, 7)]
    assert run.size == 2


def test_a_random_function_of_a_model_is_called_once_for_a_step() -> None:
    calls: list[tuple[str, int]] = []
    generator = np.random.default_rng(3)

    def drawn(name: str) -> Any:
        def draw(at: int) -> float:
            calls.append((name, int(at)))
            return 1.0 + float(generator.random())

        return draw

    noisy = ClusterModel({1: 100}, steps=20, noise_by_step=drawn("noise"), loss_by_step=drawn("loss"))
    run_on_model(gns_batch(max_peers=4), noisy)
    assert sorted(calls) == sorted((name, step) for name in ("noise", "loss") for step in range(1, 21))
