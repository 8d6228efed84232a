"""Folds: what they remember, what they refuse, and when they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kungfu import control
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.policy import policy
from kungfu.signal import Fold, Signal, TrainingSignals, fold, is_gate

training = TrainingSignals()
LIMITS = {"min_size": 1, "max_size": 8, "refused_size": 0, "pending": False}


def played(make: Callable[[Signal], Signal], losses: Sequence[float], *, first_step: int = 1) -> list[float]:
    """The value of a fold of the mean loss, step by step."""

    @policy
    def watching(training: Any) -> Any:
        return control.always().call(lambda control, value: None, make(training.mean_loss))

    replay = Replay(compile_policies([watching()]), size=1)
    steps = enumerate(losses, start=first_step)
    return [float(replay.step([{}], {**LIMITS, "mean_loss": x, "step": n}).saw[0]) for n, x in steps]


def test_a_bias_corrected_average_is_the_weighted_mean_of_all_so_far() -> None:
    # Weights 1/4 for the newest, then 3/16, 9/64: (1 * 3/4 + 5) / (7/4) and so on.
    values = played(lambda x: x.ema(0.25), [1, 5, 2])
    np.testing.assert_allclose(values, [1, (1 * 0.75 + 5) / 1.75, (1 * 0.5625 + 5 * 0.75 + 2) / 2.3125], rtol=1e-6)


def test_the_first_value_of_an_average_is_the_value_itself_to_the_last_bit() -> None:
    assert played(lambda x: x.ema(0.01), [3.0, 3.0]) == [3.0, 3.0]


def test_an_average_skips_what_is_not_finite_and_is_nan_before() -> None:
    values = played(lambda x: x.ema(0.5), [math.nan, math.inf, 4, math.nan, 1])
    np.testing.assert_allclose(values, [math.nan, math.nan, 4, 4, (4 * 0.5 + 1) / 1.5])


def test_previous_gives_the_finite_value_before_the_newest() -> None:
    np.testing.assert_array_equal(played(lambda x: x.previous(), [1, 2, math.nan, 3]), [math.nan, 1, 1, 2])


def test_hold_remembers_the_last_value_while_the_signal_was_on() -> None:
    held = played(lambda x: x.hold(when=x > 2), [1, 3, 2, 5, math.nan, 1])
    np.testing.assert_array_equal(held, [math.nan, 3, 3, 5, 5, 5])


def test_hold_takes_a_trigger_with_its_gate_and_its_predicate() -> None:
    held = played(lambda x: x.hold(when=control.every(2).when(x > 2)), [9, 1, 8, 4, 7, 6])
    np.testing.assert_array_equal(held, [math.nan, math.nan, math.nan, 4, 4, 6])


def test_hold_on_a_function_of_step_is_gated_by_it() -> None:
    assert is_gate(training.mean_loss.hold(when=training.step % 3 == 0).gate)
    assert training.mean_loss.hold(when=training.step % 3 == 0).gate.inputs != ()
    assert training.mean_loss.hold(when=training.mean_loss > 0).gate.inputs == ()


def test_a_sampled_fold_runs_in_its_steps_only() -> None:
    assert played(lambda x: fold(lambda n, value: n + value, 0.0, x).sampled(2), [1, 2, 4, 8, 16]) == [0, 2, 2, 10, 10]


def test_a_fold_carries_several_fields_and_gives_what_output_makes_of_them() -> None:
    def spread(x: Signal) -> Fold:
        from kungfu import ops

        return fold(
            lambda state, value: (ops.minimum(state[0], value), ops.maximum(state[1], value)),
            (math.inf, -math.inf),
            x,
            output=lambda state: state[1] - state[0],
        )

    assert played(spread, [3, 1, 4, 1, 5]) == [0, 2, 3, 3, 4]


def test_a_count_stays_a_whole_number() -> None:
    counter = fold(lambda n, step: n + 1, 0, training.step)
    assert str(counter.type) == "int64"


def test_a_whole_number_becomes_a_float_state() -> None:
    assert str(fold(lambda last, step: step, 0.0, training.step).type) == "float32"


def test_a_fold_of_local_inputs_is_local_and_of_agreed_ones_agreed() -> None:
    assert training.loss.ema(0.1).placement == "local"
    assert training.mean_loss.ema(0.1).placement == "agreed"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fold(lambda n, x: n + x, 0, training.loss), "starts as int64 would become float32; .* start from 0.0"),
        (lambda: fold(lambda on, x: x > 0, 0.0, training.loss), "starts as float32 would become bool"),
        (lambda: fold(lambda a, x: (a, x), 0.0, training.loss), "gives 2 fields of state and init has 1"),
        (lambda: fold(lambda a, x: a[0], (0.0, 1.0), training.loss), "gives 1 fields of state and init has 2"),
        (
            lambda: fold(lambda a, x: a + training.size, 0.0, training.loss),
            "uses <agreed int64 signal .* pass it as an",
        ),
        (lambda: fold(lambda a, x: x.ema(0.5), 0.0, training.loss), "uses <agreed float32 signal .* from outside"),
        (lambda: fold(lambda a, x: x, training.loss, training.loss), "init is <local float32 .*; a state must start"),
        (lambda: fold(lambda: (), ()), r"init is \(\); a state must start from Python numbers"),
        (lambda: fold(lambda a, x: x, 0.0, training.loss, on_rescale="forget"), "on_rescale='forget'.*keep, reset"),
        (lambda: training.loss.ema(0), r"ema\(decay=0\): .* must lie in \(0, 1\], e.g. 0.01"),
        (lambda: training.loss.ema(1.5), r"ema\(decay=1.5\)"),
        (lambda: training.grads.ema(0.5), "reduce them to a number with ops.norm_squared"),
        (lambda: training.loss.ema(0.5).sampled(0), "every 0 steps: the period must be a whole number"),
    ],
)
def test_a_wrong_fold_is_refused_with_what_to_write(make: Callable[[], Signal], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()


def test_an_output_that_reads_an_input_is_refused() -> None:
    taken: list[Signal] = []

    def update(state: Signal, x: Signal) -> Signal:
        taken.append(x)
        return state + x

    with pytest.raises(PolicyError, match="output reads an input; it is made of the state alone"):
        fold(update, 0.0, training.loss, output=lambda state: state * taken[0])
