"""Policies of a run that averages models: conditions on the step are true in the next synchronising step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kungfu as kf
from kungfu.compiler import compile_policies, explain, summarize
from kungfu.compiler.passes.synchronising import STEPS_SINCE_AVERAGE, due_every, due_in_synchronising_steps
from kungfu.control import average_models
from kungfu.errors import PolicyError
from kungfu.policies import gns_batch, schedule
from kungfu.signal import Constant, Map, Signal, Source, every_steps, topological
from kungfu.testing import ClusterModel, run_policy

STEP = Source("step")


def value_of(root: Signal, **sources: int) -> bool:
    """The value of a condition, in NumPy."""
    values: dict[Signal, object] = {}
    for node in topological([root]):
        match node:
            case Source():
                values[node] = np.int64(sources[node.source])
            case Constant():
                values[node] = node.value
            case Map():
                given = [values[one] for one in node.operands]
                values[node] = node.operation.evaluate(given, tuple(one.type for one in node.operands))
    return bool(values[root])


@pytest.mark.parametrize(
    "condition",
    [
        lambda: every_steps(7),
        lambda: STEP % 5 == 3,
        lambda: STEP == 11,
        lambda: Constant(11) == STEP,
        lambda: (STEP + 3) % 7 == 0,
        lambda: 2 + STEP - 1 == 30,
        lambda: every_steps(4) & (STEP > 10),
    ],
    ids=["every", "remainder", "one step", "one step, turned", "shifted", "one step, shifted", "after"],
)
def test_a_condition_that_was_true_in_the_window_is_true_at_its_end(condition: Callable[[], Signal]) -> None:
    before = condition()
    after = due_in_synchronising_steps([before])[before]
    draw = np.random.default_rng(0)
    last = 0
    for _ in range(60):
        now = last + int(draw.integers(1, 9))
        held = any(value_of(before, step=step) for step in range(last + 1, now + 1))
        since = {STEPS_SINCE_AVERAGE.source: now - last}
        found = value_of(after, step=now, **since)
        # A second condition, which is true from a step on, is that of the end of the window.
        assert found == held or (found and last < 10 < now)
        last = now


def test_a_plan_reads_the_steps_since_the_last_average_only_if_models_are_averaged() -> None:
    policies = [schedule({100: 4})]
    assert STEPS_SINCE_AVERAGE.source not in compile_policies(policies).source_kinds
    plan = compile_policies(policies, sync=average_models(every=8))
    assert plan.source_kinds[STEPS_SINCE_AVERAGE.source].unit == "steps"
    assert all(STEPS_SINCE_AVERAGE.source in rule.inputs for rule in plan.rules), "`kungfu why` shows it"
    assert plan.messages_per_step == 0
    assert "steps_since_average" in explain(plan)


def test_a_policy_that_needs_the_mean_of_the_gradients_is_refused_by_name() -> None:
    with pytest.raises(PolicyError, match=r"policy 'gns_batch' uses training\.mean_grads.*attach with sync=") as error:
        compile_policies([gns_batch(max_peers=4)], sync=average_models(every=8))
    assert "test_synchronising.py" in str(error.value), "the user's line"


@kf.policy
def seldom(training, *, every=8):
    return kf.control.every(10).synchronise(every=every)


@kf.policy
def often(training):
    return kf.control.every(10).synchronise(every=2)


def test_the_steps_between_averages_are_set_only_where_models_are_averaged() -> None:
    policy = seldom()
    assert compile_policies([policy], sync=average_models(every=1)).messages_per_step == 0
    assert compile_policies([policy], sync=None).rules, "not yet known how the job synchronises"
    with pytest.raises(PolicyError, match=r"policy 'seldom' asks for .*sync=\"gradients\".*average_models") as error:
        compile_policies([policy])
    assert error.value.origin in str(error.value)
    assert "test_synchronising.py" in error.value.origin, "the user's line"
    with pytest.raises(PolicyError, match=r"synchronise\(every=0\): takes a whole number of steps, at least 1"):
        compile_policies([seldom(every=0)], sync=None)


def test_of_two_policies_that_set_the_steps_between_averages_one_is_chosen() -> None:
    policies, sync = (seldom(), often()), average_models(every=1)
    with pytest.raises(PolicyError, match="all set the averaging interval and nothing says which one wins"):
        compile_policies(policies, sync=sync)
    model = ClusterModel({1: 100}, steps=40)
    (chosen,) = run_policy(kf.at_most(*policies), model, sync=sync)
    assert (chosen.step, chosen.value, chosen.won, chosen.lost) == (10, 2.0, ("often",), ("seldom",))


def test_a_condition_of_every_n_steps_is_known_as_such_after_it_was_fitted() -> None:
    plan = compile_policies([seldom()], sync=average_models(every=8))
    assert [due_every(rule.gate) for rule in plan.rules] == [10]
    assert "fires    every 10 steps" in summarize(plan, average_every=8)
    assert due_every(every_steps(7)) == 0


def test_a_policy_of_local_gradients_is_compiled() -> None:
    @kf.policy
    def steep(training):
        norms = kf.ops.all_reduce(kf.ops.norm_squared(training.grads), "mean")
        return kf.control.every(10).when(norms > 100.0).stop()

    plan = compile_policies([steep()], sync=average_models(every=8))
    assert list(plan.gradient_reductions) == ["norm_squared(grads)"]
