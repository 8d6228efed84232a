"""The folds of a number and of a truth value."""

from __future__ import annotations

import math

import numpy as np

from kungfu import control
from kungfu.signal import TrainingSignals, is_gate
from tests.signal.fold.played import played

training = TrainingSignals()


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


def test_a_delta_is_the_newest_finite_value_minus_the_one_before() -> None:
    np.testing.assert_array_equal(played(lambda x: x.delta(), [1, 4, math.nan, 2]), [math.nan, 3, 3, -2])


def test_a_sum_skips_what_is_not_finite_and_counts_from_zero() -> None:
    assert played(lambda x: x.cumulative(), [math.nan, 1, 2.5, math.inf, 4]) == [0, 1, 3.5, 3.5, 7.5]


def test_a_sum_does_not_lose_small_values_beside_a_large_one() -> None:
    # In float32 the neighbours of 2**24 are 2 apart: added one by one, the ones would all be rounded away.
    assert played(lambda x: x.cumulative(), [2.0**24, *[1.0] * 10])[-1] == 2**24 + 10


def test_a_sum_of_whole_numbers_stays_whole() -> None:
    assert str(training.step.cumulative().type) == "int64"
    assert played(lambda x: training.step.cumulative(), [0, 0, 0]) == [1, 3, 6]


def test_holding_every_so_many_steps_looks_in_those_steps_only() -> None:
    held = training.mean_loss.hold(2)
    assert is_gate(held.gate)
    np.testing.assert_array_equal(played(lambda x: x.hold(2), [5, 6, 7, 8, 9]), [math.nan, 6, 6, 8, 8])


def test_an_edge_is_true_in_the_step_in_which_a_signal_becomes_true() -> None:
    assert played(lambda x: (x > 2).rising(), [3, 4, 1, 5, 5, 0]) == [1, 0, 0, 1, 0, 0]


def test_a_count_is_of_all_true_steps_and_a_streak_of_those_in_a_row() -> None:
    losses = [3, 4, 1, 5, 5, 0]
    assert played(lambda x: (x > 2).count(), losses) == [1, 2, 2, 3, 4, 4]
    assert played(lambda x: (x > 2).streak(), losses) == [1, 2, 0, 1, 2, 0]
