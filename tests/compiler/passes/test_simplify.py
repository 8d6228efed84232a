"""Simplify: equal nodes are one node, and constants are computed once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kungfu import ops
from kungfu.compiler.passes import simplify
from kungfu.signal import Constant, Signal, TrainingSignals, fold

training = TrainingSignals()


def same(one: Signal, other: Signal) -> bool:
    shared = simplify((one, other))
    return shared[one] is shared[other]


def test_nodes_that_compute_the_same_are_one_node_whatever_their_names() -> None:
    for make in (
        lambda: (training.loss + 1) * training.size,
        lambda: ops.where(training.pending, math.nan, 1),
        lambda: training.mean_loss.ema(0.1),
        lambda: training.mean_loss.previous(),
        lambda: ops.synchronized(training.mean_loss > 0),
    ):
        assert same(make(), make())
        assert same(make().named("a"), make().named("b"))


def test_nodes_that_differ_stay_apart() -> None:
    assert not same(training.loss + 1, training.loss + 2)
    assert not same(training.loss - training.size, training.size - training.loss)
    assert not same(ops.all_reduce(training.loss, "sum"), ops.all_reduce(training.loss, "mean"))
    assert not same(training.loss + 1, training.loss + 1.0)
    assert not same(training.pending & True, training.pending & False)


def test_folds_that_differ_anywhere_stay_apart() -> None:
    loss = training.mean_loss
    folds = [
        loss.ema(0.1),
        loss.ema(0.2),
        loss.ema(0.1, on_rescale="reset"),
        loss.ema(0.1).sampled(2),
        (loss + 1).ema(0.1),
        fold(lambda a, x: a + x, 0.0, loss),
        fold(lambda a, x: x + a, 0.0, loss),
        fold(lambda a, x: a + x, 1.0, loss),
        fold(lambda a, x: a + x, 0.0, loss, output=lambda a: a * 2),
        fold(lambda a, x: a + x, 0.0, loss, on_rescale=lambda a, before, after: a * after),
        loss.window(3).values,
        loss.window(4).values,
        loss.by_size(3),
    ]
    shared = simplify(folds)
    assert len({shared[one] for one in folds}) == len(folds)


@pytest.mark.parametrize(
    ("made", "value"),
    [
        (ops.sqrt(Constant(2.0)) * 2, 2.8284270763397217),
        (Constant(7) // 2, 3),
        (Constant(7) > 3, True),
        (Constant(0.0) / 0, math.nan),
    ],
    ids=["float32", "int64", "bool", "undefined"],
)
def test_a_map_of_constants_is_a_constant_of_its_type(made: Signal, value: float) -> None:
    folded = simplify((made,))[made]
    assert isinstance(folded, Constant)
    assert (type(folded.value), folded.type) == (type(value), made.type)
    np.testing.assert_equal(folded.value, value)


LOSS, STEP, HIGH = training.mean_loss, training.step, training.mean_loss > 1


@pytest.mark.parametrize(
    ("made", "left"),
    [
        (Constant(True) & HIGH & True, HIGH),
        (Constant(False) | HIGH | False, HIGH),
        (HIGH & False, Constant(False)),
        (Constant(True) | HIGH, Constant(True)),
        (~~HIGH, HIGH),
        (ops.where(True, LOSS, STEP * 0.5), LOSS),
        (ops.where(False, STEP, LOSS), LOSS),
        (ops.where(HIGH, LOSS, LOSS), LOSS),
        (LOSS - 0, LOSS),
        (LOSS - 0.0, LOSS),
        (LOSS + -0.0, LOSS),
        (LOSS * 1 / 1.0, LOSS),
        (LOSS**1, LOSS),
        (1 * LOSS, LOSS),
        (0 + STEP - 0, STEP),
        (STEP * 1 // 1, STEP),
    ],
    ids=str,
)
def test_what_a_constant_does_not_change_goes_without_it(made: Signal, left: Signal) -> None:
    assert same(made, left)


@pytest.mark.parametrize(
    ("made", "left"),
    [
        (LOSS + 0, LOSS),  # -0.0 + 0.0 is 0.0
        (LOSS - -0.0, LOSS),
        (LOSS * 0, Constant(0.0)),  # NaN for what is not finite
        (0 - LOSS, LOSS),
        (1 / LOSS, LOSS),
        (LOSS // 1, LOSS),
        (STEP * 1.0, STEP),  # another type
        (STEP - 0.0, STEP),
        (STEP / 1, STEP),
        (ops.where(True, STEP, LOSS), STEP),
        (training.samples > 0, (training.samples > 0) & HIGH),
        ((training.samples > 0) & False, Constant(False)),  # another placement
        (ops.all_gather(training.loss) * 1, ops.all_gather(training.loss) * 1.5),
    ],
    ids=str,
)
def test_what_may_be_another_number_type_or_placement_stays(made: Signal, left: Signal) -> None:
    assert not same(made, left)


def test_a_constant_that_goes_would_not_have_changed_a_bit() -> None:
    numbers = np.array([0.0, -0.0, 1.5, -1e-30, math.inf, -math.inf, math.nan], np.float32)
    for made in (LOSS - 0, LOSS + -0.0, LOSS * 1, 1 * LOSS, LOSS / 1, LOSS**1):
        operands = [one.value if isinstance(one, Constant) else numbers for one in made.operands]  # type: ignore[attr-defined]
        found = made.operation.evaluate(operands, tuple(one.type for one in made.operands))  # type: ignore[attr-defined]
        assert found.tobytes() == numbers.tobytes()


def test_what_reads_the_state_before_the_update_is_another_fold() -> None:
    held = fold(lambda _, now: now, False, training.pending)
    assert not same(held, replace(held, recurrence=replace(held.recurrence, reads="old")))
