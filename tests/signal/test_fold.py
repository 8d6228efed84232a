"""Folds: what they remember, what they refuse, and when they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.ops import all_gather
from kungfu.policy import Policy, policy
from kungfu.signal import Filled, Fold, Signal, TrainingSignals, carried, fold, is_gate

training = TrainingSignals()
LIMITS = {"min_size": 1, "max_size": 8, "refused_size": 0, "pending": False}


def played(make: Callable[[Signal], Signal], losses: Sequence[float], *, first_step: int = 1) -> list[float]:
    """The value of a fold of the mean loss, step by step, alone."""

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


# ---- the folds of a number -----------------------------------------------------------------------------------------


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


# ---- the folds of a truth value ------------------------------------------------------------------------------------


def test_an_edge_is_true_in_the_step_in_which_a_signal_becomes_true() -> None:
    assert played(lambda x: (x > 2).rising(), [3, 4, 1, 5, 5, 0]) == [1, 0, 0, 1, 0, 0]


def test_a_count_is_of_all_true_steps_and_a_streak_of_those_in_a_row() -> None:
    losses = [3, 4, 1, 5, 5, 0]
    assert played(lambda x: (x > 2).count(), losses) == [1, 2, 2, 3, 4, 4]
    assert played(lambda x: (x > 2).streak(), losses) == [1, 2, 0, 1, 2, 0]


# ---- windows and tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda x: x.window(3).mean(), [4, 3, 3, 10 / 3, 16 / 3]),
        (lambda x: x.window(3).median(), [4, 3, 3, 3, 5]),
        (lambda x: x.window(3).min(), [4, 2, 2, 2, 3]),
        (lambda x: x.window(3).max(), [4, 4, 4, 5, 8]),
    ],
)
def test_a_window_is_over_the_last_finite_values_that_were_seen(made: Any, expected: list[float]) -> None:
    np.testing.assert_allclose(played(made, [4, 2, 3, 5, 8]), expected, rtol=1e-6)
    with_gaps = [math.nan, 4, math.inf, 2, 3, 5, 8]
    np.testing.assert_allclose(played(made, with_gaps), [math.nan, 4, 4, *expected[1:]], rtol=1e-6)


def test_a_window_can_be_sampled() -> None:
    np.testing.assert_array_equal(
        played(lambda x: x.window(2).sampled(2).max(), [9, 1, 8, 2, 7, 0]), [math.nan, 1, 1, 2, 2, 2]
    )


def test_the_vector_of_a_window_has_its_oldest_value_first() -> None:
    values = training.mean_loss.window(3).values
    assert str(values.type) == "float32[3]"
    assert played(lambda x: x.window(3).values[0], [1, 2, 3, 4])[-1] == 2
    assert played(lambda x: x.window(3).values[-1], [1, 2, 3, 4])[-1] == 4


def by_size(sizes: Sequence[int], losses: Sequence[float], look: int, **given: Any) -> list[float]:
    """An entry of the table of the mean loss by size, step by step."""

    @policy
    def watching(training: Any) -> Any:
        table = training.mean_loss.by_size(3, **given)
        return control.always().call(lambda control, value: None, table[look])

    replay = Replay(compile_policies([watching()]), size=sizes[0])
    seen = []
    for step, (size, loss) in enumerate(zip(sizes, losses, strict=True), start=1):
        replay.rescale(size)
        seen.append(float(replay.step([{}] * size, {**LIMITS, "mean_loss": loss, "step": step}).saw[0]))
    return seen


def test_a_table_remembers_what_was_seen_at_each_size() -> None:
    sizes, losses = [1, 2, 2, 1, 3], [5, 7, math.nan, 6, 9]
    np.testing.assert_array_equal(by_size(sizes, losses, 1), [5, 5, 5, 6, 6])
    np.testing.assert_array_equal(by_size(sizes, losses, 2), [math.nan, 7, 7, 7, 7])
    np.testing.assert_array_equal(by_size(sizes, losses, 3), [math.nan, math.nan, math.nan, math.nan, 9])


def test_a_table_smooths_what_it_saw_and_takes_the_first_value_as_it_is() -> None:
    np.testing.assert_allclose(by_size([2, 2, 2], [4, 8, 8], 2, decay=0.5), [4, 6, 7])


def test_a_size_beyond_the_table_is_not_recorded() -> None:
    assert all(math.isnan(one) for look in range(4) for one in by_size([4, 5], [1, 2], look))


# ---- what a rescale does -------------------------------------------------------------------------------------------


def rescaled(make: Callable[[Any], Signal], *, sizes: Sequence[int], loss: float = 1.0) -> list[float]:
    """The value of a fold while the cluster changes its size."""

    @policy
    def watching(training: Any) -> Any:
        return control.always().call(lambda control, value: None, make(training))

    replay = Replay(compile_policies([watching()]), size=sizes[0])
    seen = []
    for step, size in enumerate(sizes, start=1):
        if size != replay.size:
            replay.rescale(size)
        seen.append(float(replay.step([{}] * size, {**LIMITS, "mean_loss": loss, "step": step}).saw[0]))
    return seen


def test_a_state_is_kept_or_reset_or_converted_by_a_rescale() -> None:
    def total(on_rescale: Any) -> Callable[[Any], Signal]:
        return lambda t: fold(lambda total, x: total + x, 0.0, t.mean_loss, on_rescale=on_rescale)

    sizes = [2, 2, 4, 4, 1]
    assert rescaled(total("keep"), sizes=sizes) == [1, 2, 3, 4, 5]
    assert rescaled(total("reset"), sizes=sizes) == [1, 2, 1, 2, 1]
    # 2 for 2 peers are 4 for 4; the 6 of those are 1.5 for one.
    assert rescaled(total(lambda total, before, after: total * after / before), sizes=sizes) == [1, 2, 5, 6, 2.5]


def test_a_conversion_shows_even_in_a_step_whose_input_is_skipped() -> None:
    def total(t: Any) -> Signal:
        return fold(
            lambda total, x: total + x, 8.0, t.mean_loss, on_rescale=lambda total, before, after: total / before * after
        )

    def dropped(t: Any) -> Signal:
        return fold(
            lambda total, x: total + x,
            8.0,
            ops.where(t.size == 2, 0.0, math.nan),
            on_rescale=lambda total, before, after: total / before * after,
        )

    assert rescaled(total, sizes=[2, 4], loss=0.0) == [8, 16]
    assert rescaled(dropped, sizes=[2, 4, 2]) == [8, 16, 8]


def test_a_converted_state_of_several_fields_is_given_as_a_tuple() -> None:
    made = fold(
        lambda state, x: (state[0] + x, state[1] + 1),
        (0.0, 0),
        training.mean_loss,
        on_rescale=lambda state, before, after: (state[0] * 2, state[1] + after - before),
    )
    assert made.recurrence.init == (0.0, 0, 0)
    assert made.on_rescale == "convert"


# ---- vectors as state, and what was true before --------------------------------------------------------------------


def test_a_state_can_be_a_vector_of_a_fixed_length() -> None:
    histogram = fold(
        lambda bins, x: ops.place(bins, ops.cast(x, "int64"), bins[ops.cast(x, "int64")] + 1),
        Filled(4, 0.0),
        training.mean_loss,
    )
    assert str(histogram.type) == "float32[4]"
    assert played(lambda x: histogram[2], [2, 1, 2, 9]) == [1, 1, 2, 2]


def test_what_is_carried_is_what_was_true_in_the_step_before() -> None:
    assert played(lambda x: carried(x > 2), [3, 1, 4, 4]) == [0, 1, 0, 1]


def test_what_is_carried_gates_what_only_its_rule_needs() -> None:
    def late(t: Any) -> Any:
        gap = ops.all_reduce(t.loss - t.mean_loss, "sum")
        return control.always().when(carried(t.mean_loss > 2)).call(lambda control, gap: None, gap)

    plan = compile_policies([Policy("late", late)])
    assert plan.messages_per_step == 0
    assert [one.message is not None for one in plan.after if one.gates].count(True) == 1
    assert plan.riders.floats(3) == 1


@pytest.mark.parametrize("predicate", [training.loss > 1, training.mean_loss])
def test_only_agreed_truth_values_are_carried(predicate: Signal) -> None:
    with pytest.raises(PolicyError, match=r"takes an agreed bool signal, as in ops.carried"):
        carried(predicate)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: training.mean_loss.window(0), "a vector of 0 entries: write a whole number from 1 to 10000"),
        (lambda: training.mean_loss.window(2.5), "a vector of 2.5 entries"),
        (lambda: training.mean_loss.by_size(4, decay=0), r"by_size\(decay=0\): .* \(0, 1\]"),
        (lambda: training.mean_loss.rising(), r"\.rising\(\) of <agreed float32 .*: takes a bool signal"),
        (lambda: training.mean_loss.streak(), r"as in \(x > 0\)\.streak\(\)"),
        (lambda: training.mean_loss.hold(), r"write \.hold\(n\) .* or \.hold\(when=condition\)"),
        (lambda: training.mean_loss.hold(2, when=training.pending), r"write \.hold\(n\)"),
        (
            lambda: fold(lambda a, x: x, 0.0, all_gather(training.loss)),
            r"would become float32\[size\].*smooth each peer's own value, then gather it",
        ),
        (
            lambda: fold(lambda a, x: x, 0.0, training.loss, on_rescale=lambda a, n, m: a > n),
            "starts as float32 would become bool",
        ),
        (
            lambda: fold(lambda a, x: a, Filled(3, 0.0), training.loss) + all_gather(training.loss),
            r"vectors of lengths \[3\] and \[size\] do not go together",
        ),
    ],
)
def test_a_wrong_use_of_memory_is_refused_with_what_to_write(make: Callable[[], Signal], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()
