"""Folds: what they remember, what they refuse, and when they run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from kungfu import ops
from kungfu.errors import PolicyError
from kungfu.ops import all_gather
from kungfu.signal import Filled, Fold, Signal, TrainingSignals, fold
from tests.signal.fold.played import played, rescaled

training = TrainingSignals()
CONVERTING = fold(lambda n, x: n + 1, 0, training.loss, on_rescale=lambda n, before, after: n * after // before)


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


@pytest.mark.parametrize(
    ("made", "type"),
    [
        (fold(lambda n, step: n + 1, 0, training.step), "int64 agreed"),  # a count stays a whole number
        (fold(lambda last, step: step, 0.0, training.step), "float32 agreed"),  # a whole number becomes a float state
        (training.loss.ema(0.1), "float32 local"),
        (training.mean_loss.ema(0.1), "float32 agreed"),
    ],
)
def test_a_fold_has_the_type_of_its_state_and_the_placement_of_its_inputs(made: Fold, type: str) -> None:
    assert f"{made.type} {made.placement}" == type


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
        (lambda: training.grads.ema(0.5), "reduce them to a number with kf.ops.norm_squared"),
        (lambda: training.loss.ema(0.5).sampled(0), "every 0 steps: the period must be a whole number"),
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
        (lambda: CONVERTING.before_step(), r"\.before_step\(\) of .*: a fold that converts its state on a rescale"),
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


def test_a_state_is_kept_or_reset_or_converted_by_a_rescale() -> None:
    def total(on_rescale: Any) -> Callable[[Any], Signal]:
        return lambda t: fold(lambda total, x: total + x, 0.0, t.mean_loss, on_rescale=on_rescale)

    sizes = [2, 2, 4, 4, 1]
    assert rescaled(total("keep"), sizes=sizes, losses=[1.0] * 5) == [1, 2, 3, 4, 5]
    assert rescaled(total("reset"), sizes=sizes, losses=[1.0] * 5) == [1, 2, 1, 2, 1]
    # 2 for 2 peers are 4 for 4; the 6 of those are 1.5 for one.
    converted = rescaled(total(lambda total, before, after: total * after / before), sizes=sizes, losses=[1.0] * 5)
    assert converted == [1, 2, 5, 6, 2.5]


def test_a_conversion_shows_even_in_a_step_whose_input_is_skipped() -> None:
    def total(x: Signal) -> Signal:
        return fold(lambda total, x: total + x, 8.0, x, on_rescale=lambda total, n, m: total / n * m)

    assert rescaled(lambda t: total(t.mean_loss), sizes=[2, 4], losses=[0.0, 0.0]) == [8, 16]
    skipped = rescaled(lambda t: total(ops.where(t.size == 2, 0.0, math.nan)), sizes=[2, 4, 2], losses=[1.0] * 3)
    assert skipped == [8, 16, 8]


def test_a_converted_state_of_several_fields_is_given_as_a_tuple() -> None:
    made = fold(
        lambda state, x: (state[0] + x, state[1] + 1),
        (0.0, 0),
        training.mean_loss,
        on_rescale=lambda state, before, after: (state[0] * 2, state[1] + after - before),
    )
    assert made.recurrence.init == (0.0, 0, 0)
    assert made.on_rescale == "convert"


def test_a_state_can_be_a_vector_of_a_fixed_length() -> None:
    histogram = fold(
        lambda bins, x: ops.scatter(bins, ops.cast(x, "int64"), bins[ops.cast(x, "int64")] + 1),
        Filled(4, 0.0),
        training.mean_loss,
    )
    assert str(histogram.type) == "float32[4]"
    assert played(lambda x: histogram[2], [2, 1, 2, 9]) == [1, 1, 2, 2]


# ---- the value before the step -------------------------------------------------------------------------------------


def test_a_fold_before_the_step_gives_what_it_gave_in_the_step_before() -> None:
    assert played(lambda x: x.cumulative(), [1, 2, 4]) == [1, 3, 7]
    assert played(lambda x: x.cumulative().before_step(), [1, 2, 4]) == [0, 1, 3]
    late = training.mean_loss.ema(0.5)
    assert (late.known, late.before_step().known) == ("after", "before"), "in time for the gradients"
    assert late.before_step().recurrence.label == "ema before the step"
