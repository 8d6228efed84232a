"""The folds of a number and of a truth value, step by step: averages, windows, tables by size, edges and counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy
from kungfu.signal import Signal, TrainingSignals, is_gate, synchronized
from tests.signal.fold.played import played, rescaled

training = TrainingSignals()
LOSSES = [3, 4, 1, 5, 5, 0]
# Weights 1/4 for the newest, then 3/16, 9/64: (1 * 3/4 + 5) / (7/4) and so on.
WEIGHTED = [1, (1 * 0.75 + 5) / 1.75, (1 * 0.5625 + 5 * 0.75 + 2) / 2.3125]
WINDOWED: list[tuple[str, Callable[[Signal], Signal], list[float]]] = [
    ("mean", lambda x: x.window(3).mean(), [4, 3, 3, 10 / 3, 16 / 3]),
    ("median", lambda x: x.window(3).median(), [4, 3, 3, 3, 5]),
    ("smallest", lambda x: x.window(3).min(), [4, 2, 2, 2, 3]),
    ("largest", lambda x: x.window(3).max(), [4, 4, 4, 5, 8]),
]
HISTORIES: list[tuple[str, Callable[[Signal], Signal], Sequence[float], list[float]]] = [
    ("average is the weighted mean of all so far", lambda x: x.ema(0.25), [1, 5, 2], WEIGHTED),
    ("average skips what is not finite", lambda x: x.ema(0.5), [nan, inf, 4, nan, 1], [nan, nan, 4, 4, 3 / 1.5]),
    ("previous", lambda x: x.previous(), [1, 2, nan, 3], [nan, 1, 1, 2]),
    ("delta", lambda x: x.delta(), [1, 4, nan, 2], [nan, 3, 3, -2]),
    ("hold while on", lambda x: x.hold(when=x > 2), [1, 3, 2, 5, nan, 1], [nan, 3, 3, 5, 5, 5]),
    (
        "hold by gate and predicate",
        lambda x: x.hold(when=control.every(2).when(x > 2)),
        [9, 1, 8, 4, 7, 6],
        [nan, nan, nan, 4, 4, 6],
    ),
    ("hold every second", lambda x: x.hold(2), [5, 6, 7, 8, 9], [nan, 6, 6, 8, 8]),
    ("sum of the finite", lambda x: x.cumulative(), [nan, 1, 2.5, inf, 4], [0, 1, 3.5, 3.5, 7.5]),
    # In float32 the neighbours of 2**24 are 2 apart: added one by one, the ones would all be rounded away.
    (
        "sum of small beside large",
        lambda x: x.cumulative() - 2.0**24,
        [2.0**24, *[1.0] * 10],
        [0, 0, 2, 4, 4, 4, 6, 8, 8, 8, 10],
    ),
    ("sum of whole numbers", lambda x: training.step.cumulative(), [0, 0, 0], [1, 3, 6]),
    ("edge", lambda x: (x > 2).rising(), LOSSES, [1, 0, 0, 1, 0, 0]),
    ("count", lambda x: (x > 2).count(), LOSSES, [1, 2, 2, 3, 4, 4]),
    ("streak", lambda x: (x > 2).streak(), LOSSES, [1, 2, 0, 1, 2, 0]),
    ("truth of the step before", lambda x: synchronized(x > 2), [3, 1, 4, 4], [0, 1, 0, 1]),
    *((f"{name} of a window", made, [4, 2, 3, 5, 8], expected) for name, made, expected in WINDOWED),
    *(
        (f"{name} of a window with gaps", made, [nan, 4, inf, 2, 3, 5, 8], [nan, 4, 4, *expected[1:]])
        for name, made, expected in WINDOWED
    ),
    ("window sampled", lambda x: x.window(2).sampled(2).max(), [9, 1, 8, 2, 7, 0], [nan, 1, 1, 2, 2, 2]),
    ("oldest of a window", lambda x: x.window(3).values[0], [1, 2, 3, 4], [nan, nan, 1, 2]),
    ("newest of a window", lambda x: x.window(3).values[-1], [1, 2, 3, 4], [1, 2, 3, 4]),
]


@pytest.mark.parametrize(("name", "made", "losses", "expected"), HISTORIES, ids=[name for name, *_ in HISTORIES])
def test_a_fold_remembers_what_it_is_called(name: str, made: Any, losses: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(played(made, losses), expected, rtol=1e-6)


def test_the_first_value_of_an_average_is_the_value_itself_to_the_last_bit() -> None:
    assert played(lambda x: x.ema(0.01), [3.0, 3.0]) == [3.0, 3.0]


def test_hold_on_a_function_of_step_is_gated_by_it() -> None:
    assert all(is_gate(training.mean_loss.hold(**on).gate) for on in ({"when": training.step % 3 == 0}, {"every": 2}))
    assert training.mean_loss.hold(when=training.step % 3 == 0).gate.inputs != ()
    assert training.mean_loss.hold(when=training.mean_loss > 0).gate.inputs == ()


# ---- tables by size --------------------------------------------------------------------------------------------------


def by_size(sizes: Sequence[int], losses: Sequence[float], look: int, **given: Any) -> list[float]:
    """An entry of the table of the mean loss by size, step by step."""
    return rescaled(lambda training: training.mean_loss.by_size(3, **given)[look], sizes=sizes, losses=losses)


def test_a_table_remembers_what_was_seen_at_each_size() -> None:
    sizes, losses = [1, 2, 2, 1, 3], [5, 7, nan, 6, 9]
    np.testing.assert_array_equal(by_size(sizes, losses, 1), [5, 5, 5, 6, 6])
    np.testing.assert_array_equal(by_size(sizes, losses, 2), [nan, 7, 7, 7, 7])
    np.testing.assert_array_equal(by_size(sizes, losses, 3), [nan, nan, nan, nan, 9])


def test_a_table_smooths_what_it_saw_and_takes_the_first_value_as_it_is() -> None:
    np.testing.assert_allclose(by_size([2, 2, 2], [4, 8, 8], 2, decay=0.5), [4, 6, 7])


def test_a_size_beyond_the_table_is_not_recorded() -> None:
    assert all(math.isnan(one) for look in range(4) for one in by_size([4, 5], [1, 2], look))


# ---- what is synchronized --------------------------------------------------------------------------------------------


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
