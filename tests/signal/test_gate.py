"""Gates: exact functions of step and size, and nothing else."""

from __future__ import annotations

import pytest

from kungfu import ops
from kungfu.errors import PolicyError
from kungfu.signal import Constant, Signal, TrainingSignals, every_steps, is_exact, is_gate
from kungfu.signal.gate import period_of

training = TrainingSignals()


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        # Whole-number functions of step and size.
        (training.step % 50 == 0, True),
        ((training.step > 10) & (training.size < training.max_size), True),
        (~(training.step // training.size == 3), True),
        (ops.where(training.size > 1, training.step, training.min_size) == 4, True),
        (Constant(True), True),
        (ops.synchronized(training.mean_loss > 0), True),
        (ops.synchronized(training.mean_loss > 0) & (training.step % 2 == 0), True),
        # What peers could see differently.
        (training.step / 2 > 3, False),
        (training.step * 1.0 > 3, False),
        (training.mean_loss > 0, False),
        (training.pending, False),
        (training.rank == 0, False),
        (ops.all_reduce(training.loss, "sum") > 0, False),
        (training.step.previous() > 2, False),
        (training.step % 50, False),  # a number
    ],
)
def test_an_exact_truth_value_is_a_gate(signal: Signal, expected: bool) -> None:
    assert is_gate(signal) == expected


def test_a_number_can_be_exact() -> None:
    assert is_exact(training.step % 50)


@pytest.mark.parametrize("every", [0, -1, 2.0, True, "3"])
def test_a_period_that_is_none_is_refused(every: object) -> None:
    with pytest.raises(PolicyError, match=r"the period must be a whole number of at least 1, e.g. 50"):
        every_steps(every)  # type: ignore[arg-type]  # what a user might write


def test_every_step_is_no_condition_at_all() -> None:
    gate = every_steps(1)
    assert isinstance(gate, Constant)
    assert gate.value is True


def test_only_the_steps_of_training_make_a_period() -> None:
    others = (training.size % 7 == 0, training.step % training.size == 0, training.step == 7, training.step % 7 > 0)
    assert [period_of(gate) for gate in (every_steps(7), *others)] == [7, 1, 1, 1, 1]
