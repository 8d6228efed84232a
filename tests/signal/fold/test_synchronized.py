"""A truth value of the step before, exact enough for a gate."""

from __future__ import annotations

from typing import Any

import pytest

from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy
from kungfu.signal import Signal, TrainingSignals, synchronized
from tests.signal.fold.played import played

training = TrainingSignals()


def test_what_is_synchronized_is_what_was_true_in_the_step_before() -> None:
    assert played(lambda x: synchronized(x > 2), [3, 1, 4, 4]) == [0, 1, 0, 1]


def test_what_is_synchronized_gates_what_only_its_rule_needs() -> None:
    def late(t: Any) -> Any:
        gap = ops.all_reduce(t.loss - t.mean_loss, "sum")
        return control.always().when(synchronized(t.mean_loss > 2)).call(lambda control, gap: None, gap)

    plan = compile_policies([Policy("late", late)])
    assert plan.messages_per_step == 0
    assert [one.message is not None for one in plan.after if one.gates].count(True) == 1
    assert plan.piggybacked.floats(3) == 1


@pytest.mark.parametrize("predicate", [training.loss > 1, training.mean_loss])
def test_only_agreed_truth_values_are_synchronized(predicate: Signal) -> None:
    with pytest.raises(PolicyError, match=r"takes an agreed bool signal, as in kf.ops.synchronized"):
        synchronized(predicate)
