"""The type rules of the vocabulary, and their error texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kungfu import ops
from kungfu.errors import PolicyError
from kungfu.signal import VOCABULARY, Signal, SignalType, TrainingSignals

training = TrainingSignals()
vector = ops.all_gather(training.loss)
flag = training.pending


@pytest.mark.parametrize(
    ("made", "type"),
    [
        (training.step + 1, "int64"),
        (training.step + 1.5, "float32"),
        (2 - training.mean_loss, "float32"),
        (training.step / 2, "float32"),
        (2 / training.step, "float32"),
        (training.step // 2, "int64"),
        (7 // training.step, "int64"),
        (training.step % 2, "int64"),
        (7 % training.step, "int64"),
        (training.loss // 2, "float32"),
        (2 % training.loss, "float32"),
        (training.step**2, "float32"),
        (2**training.step, "float32"),
        (-training.step, "int64"),
        (abs(training.loss), "float32"),
        (training.step < 2, "bool"),
        (training.loss >= training.step, "bool"),
        (flag == True, "bool"),  # noqa: E712 - a comparison of signals is a signal
        (training.step != 2.0, "bool"),
        (flag & True, "bool"),
        (True | flag, "bool"),
        (~flag, "bool"),
        (ops.where(flag, 1, 2.0), "float32"),
        (ops.where(flag, True, flag), "bool"),
        (ops.where(vector > 0, vector, 0), "float32[size]"),
        (vector + training.step, "float32[size]"),
        (vector > 0, "bool[size]"),
        (ops.minimum(training.step, 3), "int64"),
        (ops.clip(training.step, 1, 2.5), "float32"),
        (ops.round(training.step), "float32"),
        (ops.median(vector), "float32"),
        (ops.norm_squared(training.grads), "float32"),
        (ops.is_finite(training.loss), "bool"),
        (ops.all_reduce(training.rank, "sum"), "float32"),
        (ops.all_reduce(vector, "mean"), "float32[size]"),
        (vector[0], "float32"),
        (vector[-training.step], "float32"),
        ((vector > 0)[ops.ranks()], "bool[size]"),
        (ops.argmax(vector), "int64"),
        (ops.count(vector > 1), "int64"),
        (ops.any(vector > 1), "bool"),
        (ops.all(vector > 1), "bool"),
        (ops.ranks(), "int64[size]"),
        (ops.one_hot(training.size - 1, True, fill=False), "bool[size]"),
        (ops.one_hot(0, 1.5), "float32[size]"),
        (ops.scatter(vector, 0, training.step), "float32[size]"),
        (ops.cast(flag, "float32"), "float32"),
        (ops.cast(vector, "int64"), "int64[size]"),
        (ops.cast(training.step, "bool"), "bool"),
        (ops.constant(3) + training.step, "int64"),
        (ops.abs(-training.step), "int64"),
        (ops.dot(training.grads, training.mean_grads), "float32"),
        (ops.max_abs(training.grads), "float32"),
        (ops.all_finite(training.mean_grads), "bool"),
        (training.mean_loss.window(5).values, "float32[5]"),
        (training.mean_loss.by_size(4), "float32[5]"),
        (ops.median(training.mean_loss.by_size(4)), "float32"),
        (ops.places(vector > 1), "int64[size]"),
        (ops.places(training.mean_loss.by_size(4)), "int64[5]"),
        (training.mean_loss.statistics_by_size(4).count, "int64[5]"),
        (training.mean_loss.statistics_by_size(4).standard_error, "float32[5]"),
        (training.mean_loss.statistics_by_size(4).age, "int64[5]"),
    ],
)
def test_a_signal_has_the_type_that_its_rule_says(made: Signal, type: str) -> None:
    assert str(made.type) == type


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: flag + 1, r"add\(bool, int64\): a bool is no number here; write kf.ops.where\(flag, 1, 0\)"),
        (lambda: training.step & flag, r"and\(int64, bool\): takes bool signals only; compare first"),
        (lambda: ~training.loss, r"not\(float32\): takes bool signals only"),
        (lambda: flag % 2, r"modulo\(bool, int64\): a bool is no number"),
        (lambda: training.grads * 2, r"multiply\(float32\[nest\], int64\): .* reduce them .* kf.ops.norm_squared"),
        (lambda: ops.where(training.loss, 1, 2), r"where\(float32, int64, int64\): the first argument decides"),
        (lambda: ops.where(flag, flag, 2), r"where\(bool, bool, int64\): a bool is no number"),
        (lambda: ops.norm_squared(training.loss), r"norm_squared\(float32\): takes training.grads"),
        (lambda: ops.median(training.loss), r"median\(float32\): takes a vector .* kf.ops.all_gather"),
        (lambda: vector[0.5], r"take\(float32\[size\], float32\): a place .* kf.ops.cast\(x, \"int64\"\)"),
        (lambda: training.loss[0], r"take\(float32, int64\): takes a vector .* kf.ops.all_gather"),
        (lambda: ops.any(vector), r"any\(float32\[size\]\): takes a vector of truth values; compare first"),
        (lambda: ops.count(flag), r"count\(bool\): takes a vector"),
        (
            lambda: ops.cast(training.loss, "int32"),
            r"cast\(x, 'int32'\): a signal is one of 'bool', 'int64', 'float",
        ),
        (lambda: ops.dot(training.grads, training.loss), r"dot\(float32\[nest\], float32\): takes training.grads"),
        (lambda: ops.scatter(vector, vector > 0, 1), r"scatter\(.*\): a place in a vector is a whole number"),
        (lambda: ops.one_hot(vector, 1), r"a place in a vector is a whole number"),
        (lambda: ops.one_hot(ops.ranks(), 1), r"puts one number at one place"),
        (lambda: ops.sqrt(flag), r"sqrt\(bool\): a bool is no number"),
    ],
)
def test_an_ill_typed_operation_names_its_types_and_what_to_write(make: Callable[[], Signal], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "values", "types", "result"),
    [
        ("divide", (1, 3), ("int64", "int64"), np.float32(1 / 3)),
        ("divide", (1.0, 0.0), ("float32", "float32"), np.float32("inf")),
        ("add", (2**40, 1), ("int64", "int64"), np.int64(2**40 + 1)),
        ("less", (np.arange(3), 1), ("int64", "int64"), np.array([True, False, False])),
    ],
)
def test_an_operation_is_evaluated_in_the_types_of_the_graph(name: str, values, types, result) -> None:
    found = VOCABULARY[name].evaluate(values, tuple(SignalType(one) for one in types))
    assert found.dtype == result.dtype
    np.testing.assert_array_equal(found, result)
