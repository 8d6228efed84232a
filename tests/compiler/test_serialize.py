"""A plan as JSON: what comes back is the same plan; and its outline: what changes a part, and what does not."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from kungfu import control, ops
from kungfu.compiler import compile_policies, explain
from kungfu.compiler.replay import Replay
from kungfu.compiler.serialize import outline, plan_from_json, plan_to_json
from kungfu.control import Call
from kungfu.errors import InternalError, UsageError
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import Policy, at_most, policy
from kungfu.signal import Map, Operation
from kungfu.signal.operation.rules import arithmetic
from tests.compiler.cluster import invented
from tests.compiler.random_policy import Instruction, instructions, random_plan
from tests.compiler.small import ignore, plan_of, plan_showing


def sent(plan: Any) -> Any:
    """The plan after a journey as text."""
    return plan_from_json(json.loads(json.dumps(plan_to_json(plan), allow_nan=False)))


@settings(max_examples=20, deadline=None)
@given(instructions(at_least=3, at_most=20))
def test_any_plan_comes_back_and_decides_alike(program: list[Instruction]) -> None:
    plan = random_plan(program)
    again, rng = sent(plan), np.random.default_rng(2)
    assert explain(again) == explain(plan)
    first, second = Replay(plan, size=2), Replay(again, size=2)
    for number in range(1, 7):
        local, agreed = invented(rng, number=number, size=2)
        for one, other in zip(first.step(local, agreed), second.step(local, agreed), strict=True):
            np.testing.assert_array_equal(one, other)


def test_nodes_that_were_shared_are_shared_again() -> None:
    both = at_most(gns_batch(max_peers=8), schedule({3: 2}))
    plan = compile_policies([both])
    again = sent(plan)
    assert len(again.nodes) == len(plan.nodes)
    assert [one.origin for one in again.nodes] == [one.origin for one in plan.nodes]
    assert again.rules[0].inputs.keys() == plan.rules[0].inputs.keys()


def test_a_chain_of_nodes_may_be_long() -> None:
    def long(training: Any) -> Any:
        value = training.mean_loss
        for _ in range(1500):
            value = value + training.learning_rate
        return control.always().call(ignore, value)

    plan = plan_of(long)
    assert len(sent(plan).nodes) == len(plan.nodes)


def test_a_hook_is_known_by_its_name_only() -> None:
    action = sent(plan_showing(lambda t: t.mean_loss)).rules[0].action
    assert isinstance(action, Call)
    assert action.fn.__name__ == "ignore"
    with pytest.raises(UsageError, match=r"ignore belongs to the program that was recorded"):
        action.fn(None, 1.0)


def test_an_operation_outside_the_vocabulary_is_not_written_under_another_name() -> None:
    other = Operation("exp", arithmetic, np.square, "tf.square")
    with pytest.raises(InternalError, match=r"'exp' is not in the vocabulary"):
        plan_to_json(plan_showing(lambda t: Map(other, (t.mean_loss,))))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"schema": 7}, r"a plan of schema 7, and this kungfu reads schema 2: use the version of"),
        ([], r"a plan of schema None"),
        ({"schema": 2, "nodes": [{"is": "Riddle"}], "plan": []}, r"KeyError: 'Riddle'"),
        ({"schema": 2, "nodes": [], "plan": {}}, r"ValueError: \[\] is no part of a plan"),
        ({"schema": 2, "nodes": [], "plan": {"node": 4}}, r"IndexError"),
        ({"schema": 2, "nodes": [], "plan": {"is": "SignalType", "dtype": "bool"}}, r"a SignalType, and no plan"),
    ],
)
def test_what_is_no_plan_is_refused(content: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_from_json(content)


def test_a_constant_keeps_its_kind() -> None:
    plan = plan_showing(lambda t: ops.where(t.mean_loss > 1.0, 1, 2), lambda t: True)
    assert [str(one.type) for one in sent(plan).rules[0].action.signals] == ["int64", "bool"]


def test_what_only_a_later_message_gives_is_a_node_of_the_plan() -> None:
    plan = plan_showing(lambda t: ops.all_reduce(t.rank * t.mean_loss, "sum"), every=2)
    assert set(plan.rules[0].action.signals) <= set(plan.nodes)
    assert explain(sent(plan)) == explain(plan)


def test_the_keys_of_a_rule_are_those_of_its_schema() -> None:
    """A key under another name needs another number of the schema, or a record of before would be misread."""
    (rule,) = plan_to_json(compile_policies([schedule({3: 2})]))["plan"]["rules"]
    assert " ".join(rule) == (
        "is name trigger fires action inputs mode candidates budget replacement_budget budgets origin"
    )
    assert " ".join(rule["trigger"]) == "is gate predicate pause event"


# ---- the outline -----------------------------------------------------------------------------------------------------


def note_else(control: Any, *values: float) -> None:
    """Another one."""


def parts(*policies: Policy, **options: Any) -> list[tuple[str, str]]:
    return list(outline(compile_policies(policies, **options)))


def texts(*policies: Policy) -> list[str]:
    return [text for _, text in parts(*policies)]


def news(one: Policy, other: Policy) -> list[str]:
    """What is shown of the parts of ``other`` that ``one`` lacks."""
    known = set(texts(one))
    return [shown for shown, text in parts(other) if text not in known]


@policy
def summed(training: Any, *, swapped: bool = False, decay: float = 0.5, hook: Any = ignore) -> Any:
    a = ops.all_reduce(training.loss, "mean")
    b = ops.all_reduce(training.samples, "sum")
    c = b + a if swapped else a + b
    return control.every(5).call(hook, c.ema(decay))


def test_a_policy_that_is_built_again_has_the_same_parts() -> None:
    assert parts(summed()) == parts(summed())
    assert parts(gns_batch(max_peers=8)) == parts(gns_batch(max_peers=8))


def test_the_order_of_a_sum_is_another_part_and_shown_with_rule_name_and_line() -> None:
    first = news(summed(), summed(swapped=True))[0]
    line = summed.__wrapped__.__code__.co_firstlineno + 4
    assert first == f"c = b + a in rule summed [test_serialize.py:{line}]"


def test_a_number_inside_of_a_fold_is_another_part_and_shown() -> None:
    (first, *_) = news(summed(), summed(decay=0.25))
    assert "ema(c)" in first
    assert "0.25" in first
    assert "0.5" in next(shown for shown, _ in parts(summed()) if "ema(c)" in shown)


def test_a_hook_counts_by_its_module_and_name() -> None:
    (changed, *_) = news(summed(), summed(hook=note_else))
    assert changed.startswith("rule summed: call note_else(")
    partial = functools.partial(ignore, extra=1)
    assert texts(summed(hook=partial)) != texts(summed(hook=functools.partial(note_else, extra=1)))


def test_lines_and_names_of_variables_make_no_difference() -> None:
    def once(training: Any) -> Any:
        doubled = training.mean_loss * 2.0
        return control.every(3).when(doubled > 1.0).rescale(2)

    def again(training: Any) -> Any:

        twice = training.mean_loss * 2.0

        return control.every(3).when(twice > 1.0).rescale(2)

    assert texts(Policy("once", once)) == texts(Policy("once", again))


def test_rules_on_a_rescale_and_the_budget_and_the_order_of_policies_count() -> None:
    @policy
    def scaled(training: Any, *, rate: float) -> Any:
        return control.on_rescale().set_learning_rate(rate)

    assert any("on a rescale" in shown for shown in news(scaled(rate=0.1), scaled(rate=0.2)))
    budgeted = parts(schedule({3: 2}), budget=control.Budget(rescales=2, per_steps=100))
    assert [text for _, text in budgeted] != texts(schedule({3: 2}))
    one, other = summed(), scaled(rate=0.1)
    assert texts(one, summed(hook=note_else)) != texts(summed(hook=note_else), one)
    assert set(texts(one, other)) != set(texts(one))
