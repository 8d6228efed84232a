"""Triggers: when a rule may look, what hangs on it, and when it is on: after a step, until something was seen."""

from __future__ import annotations

from collections.abc import Callable
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


def test_a_condition_on_step_narrows_the_gate() -> None:
    trigger = control.every(10).when(training.step > 100)
    assert is_gate(trigger.gate)
    assert isinstance(trigger.predicate, Constant)


def test_any_other_condition_is_looked_at_inside_the_gate() -> None:
    trigger = control.every(10).when(training.mean_loss < 1).when(training.mean_loss > 0)
    assert is_gate(trigger.gate)
    assert not isinstance(trigger.predicate, Constant)


def test_a_rescale_keeps_the_local_batch_size_unless_told_otherwise() -> None:
    action = control.always().rescale(4).action
    assert isinstance(action, Rescale)
    assert action.keep == "local_batch_size"


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (lambda step=step: control.always().after(step), r"\.after\(.*takes the number of a step")
            for step in (-1, 1.5, True)
        ),
        (lambda: control.always().until(training.mean_loss), r"\.until\(.*takes a bool signal; .* as in \.until\("),
        *(
            (
                lambda one=one: control.always().when(one),
                r"takes a bool signal; compare first, as in .when\(noise > 100\)",
            )
            for one in (training.mean_loss, True, "loss > 1")
        ),
        (lambda: control.always().rescale(4, keep="batch"), r"keep='batch'\): .* local_batch_size, global_batch_size"),
    ],
)
def test_what_a_trigger_cannot_take_is_refused_with_what_to_write(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()
