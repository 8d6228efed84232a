"""Triggers: when a rule may look, and what hangs on it."""

from __future__ import annotations

from typing import Any

import pytest

from kungfu import control
from kungfu.control import Rescale
from kungfu.errors import PolicyError
from kungfu.signal import Constant, TrainingSignals, is_gate

training = TrainingSignals()


def test_a_trigger_of_every_n_steps_is_gated_by_step() -> None:
    assert is_gate(control.every(50).gate)
    assert not isinstance(control.every(50).gate, Constant)


def test_always_is_on_in_every_step() -> None:
    gate = control.always().gate
    assert isinstance(gate, Constant)
    assert gate.value is True


def test_a_condition_on_step_narrows_the_gate() -> None:
    trigger = control.every(10).when(training.step > 100)
    assert is_gate(trigger.gate)
    assert isinstance(trigger.predicate, Constant)


def test_any_other_condition_is_looked_at_inside_the_gate() -> None:
    trigger = control.every(10).when(training.mean_loss < 1).when(training.mean_loss > 0)
    assert is_gate(trigger.gate)
    assert not isinstance(trigger.predicate, Constant)


@pytest.mark.parametrize("predicate", [training.mean_loss, True, "loss > 1"])
def test_a_condition_that_is_no_bool_signal_is_refused(predicate: Any) -> None:
    with pytest.raises(PolicyError, match=r"takes a bool signal; compare first, as in .when\(noise > 100\)"):
        control.always().when(predicate)


def test_a_rescale_keeps_the_local_batch_size_unless_told_otherwise() -> None:
    action = control.always().rescale(4).action
    assert isinstance(action, Rescale)
    assert action.keep == "local_batch_size"


def test_a_rescale_that_keeps_nothing_known_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"keep='batch'\): .* local_batch_size, global_batch_size"):
        control.always().rescale(4, keep="batch")  # type: ignore[arg-type]  # what a user might write
