"""Triggers: when a rule may look, what hangs on it, and when it is on: after a step, until something was seen."""

from __future__ import annotations

from typing import Any

import pytest

from kungfu import control
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control import Rescale, Trigger
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy
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


def on(trigger: Trigger, losses: list[float]) -> list[int]:
    """The steps in which a stop would be asked for."""
    replay = Replay(compile_policies([Policy("alone", lambda training: trigger.stop())]), size=1)
    return [
        step
        for step, loss in enumerate(losses, start=1)
        if replay.step([{}], {"step": step, "pending": False, "mean_loss": loss}).fired[0]
    ]


def test_after_a_step_the_next_one_is_the_first() -> None:
    assert on(control.every(2).after(3), [0.0] * 8) == [4, 6, 8]
    assert is_gate(control.every(2).after(3).gate)


def test_until_something_was_seen_it_is_on_and_never_again() -> None:
    assert on(control.always().until(training.mean_loss < 1), [3, 2, 0.5, 2, 3]) == [1, 2]


def test_until_looks_in_the_steps_of_its_trigger_only() -> None:
    assert on(control.every(2).until(training.mean_loss < 1), [0.5, 2, 0.5, 2, 0.5, 0.5, 2, 2]) == [2, 4]


def test_what_was_seen_outlasts_a_rescale() -> None:
    trigger = control.always().until(training.mean_loss < 1)
    replay = Replay(compile_policies([Policy("alone", lambda training: trigger.stop())]), size=1)
    replay.step([{}], {"step": 1, "pending": False, "mean_loss": 0.5})
    replay.rescale(2)
    assert not replay.step([{}, {}], {"step": 2, "pending": False, "mean_loss": 5.0}).fired[0]


@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_after_takes_the_number_of_a_step(step: Any) -> None:
    with pytest.raises(PolicyError, match=r"\.after\(.*takes the number of a step"):
        control.always().after(step)


def test_until_takes_a_bool_signal() -> None:
    with pytest.raises(PolicyError, match=r"\.until\(.*takes a bool signal; compare first, as in \.until\("):
        control.always().until(training.mean_loss)
