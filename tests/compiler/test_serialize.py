"""A plan as JSON: what comes back is the same plan."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from kungfu import control, ops
from kungfu.compiler import compile_policies, explain
from kungfu.compiler.replay import Replay
from kungfu.compiler.serialize import plan_from_json, plan_to_json
from kungfu.control import Call
from kungfu.errors import InternalError, UsageError
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import at_most
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
