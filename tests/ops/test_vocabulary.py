"""The twins: TensorFlow and NumPy say the same about every number, the awkward ones first."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from kungfu.compiler.lower import TensorFlowMachine
from kungfu.compiler.replay import NumpyCluster
from kungfu.errors import PolicyError
from kungfu.ops.vocabulary import VOCABULARY
from kungfu.signal import NEST, VECTOR, Operation, SignalType
from kungfu.signal.operation import DType

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.25, 1e-30, 1e30, np.inf, -np.inf, np.nan]
INTS = [0, 1, -1, 2, 3, -7, 50, 2**40]
BOOLS = [False, True]
VALUES: dict[DType, list[Any]] = {"float32": FLOATS, "int64": INTS, "bool": BOOLS}

VECTORS = [[1.0], [3.0, 1.0], [2.0, -1.0, 7.0], [4.0, 1.0, 2.0, 2.0], [1.0, np.nan], [np.inf, 1.0], [-np.inf, 0.0, 1.0]]


def named(operation: Operation) -> str:
    return operation.name


def ruled_by(*names: str) -> list[Operation]:
    return [one for one in VOCABULARY.values() if one.rule.__name__ in names]


ELEMENTWISE = [one for one in VOCABULARY.values() if one not in ruled_by("vector_reduction", "nest_reduction")]


def arity(operation: Operation) -> int:
    unary = {"negative", "abs", "not", "sqrt", "exp", "log", "round", "floor", "ceil", "is_finite"}
    return 3 if operation.name == "where" else 1 if operation.name in unary else 2


def operand_types(operation: Operation) -> list[tuple[DType, ...]]:
    """Every combination of dtypes that the operation takes."""
    found = []
    for dtypes in itertools.product(VALUES, repeat=arity(operation)):
        try:
            operation.typing(tuple(SignalType(one) for one in dtypes))
        except PolicyError:
            continue
        found.append(dtypes)
    return found


def both(operation: Operation, operands: list[Any], types: tuple[SignalType, ...]) -> tuple[Any, Any]:
    typing = operation.typing(types)
    with np.errstate(all="ignore"):
        (oracle,) = NumpyCluster({}, 1).apply(operation, [(one,) for one in operands], typing.operands)
    tensor = TensorFlowMachine({}, lambda vectors, tag: vectors).apply(operation, operands, typing.operands)
    assert str(np.asarray(oracle).dtype) == tensor.dtype.name == typing.result.dtype
    return oracle, tensor.numpy()


@pytest.mark.parametrize("operation", ELEMENTWISE, ids=named)
def test_the_twins_of_an_operation_agree_on_awkward_numbers(operation: Operation) -> None:
    accepted = operand_types(operation)
    assert accepted
    for dtypes in accepted:
        grid = np.array(list(itertools.product(*(range(len(VALUES[one])) for one in dtypes))))
        operands = [np.array(VALUES[one], one)[grid[:, place]] for place, one in enumerate(dtypes)]
        oracle, tensor = both(operation, operands, tuple(SignalType(one) for one in dtypes))
        # TensorFlow takes what is too small for a normal float32 for zero.
        np.testing.assert_allclose(tensor, oracle, rtol=2e-6, atol=1e-37, err_msg=f"{operation.name} of {dtypes}")


@pytest.mark.parametrize("operation", ruled_by("vector_reduction"), ids=named)
@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_the_twins_of_a_reduction_agree(operation: Operation, vector: list[float]) -> None:
    oracle, tensor = both(operation, [np.array(vector, np.float32)], (SignalType("float32", VECTOR),))
    np.testing.assert_allclose(tensor, oracle, rtol=1e-6)


@pytest.mark.parametrize(
    ("operation", "expected"), [("sum", 10), ("mean", 2.5), ("min", 1), ("max", 4), ("median", 2.5)]
)
def test_a_reduction_means_what_it_is_called(operation: str, expected: float) -> None:
    oracle, tensor = both(VOCABULARY[operation], [np.array([4, 1, 2, 3], np.float32)], (SignalType("float32", VECTOR),))
    assert oracle == tensor == expected


def test_the_squared_norm_adds_the_squares_of_every_entry() -> None:
    nest = [np.array([3.0, 4.0], np.float32), np.array([[1.0], [-2.0]], np.float32), np.float32(2)]
    oracle, tensor = both(VOCABULARY["norm_squared"], [nest], (SignalType("float32", NEST),))
    assert oracle == tensor == 9 + 16 + 1 + 4 + 4


def test_the_squared_norm_of_no_gradients_is_zero() -> None:
    oracle, tensor = both(VOCABULARY["norm_squared"], [[]], (SignalType("float32", NEST),))
    assert oracle == tensor == 0


def test_whole_division_by_zero_is_zero_and_stops_nothing() -> None:
    for name in ("floor_divide", "modulo"):
        oracle, tensor = both(VOCABULARY[name], [np.int64(7), np.int64(0)], (SignalType("int64"),) * 2)
        assert oracle == tensor == 0


def test_rounding_takes_halves_to_the_even_number() -> None:
    oracle, tensor = both(VOCABULARY["round"], [np.array([0.5, 1.5, 2.5, -0.5], np.float32)], (SignalType("float32"),))
    assert oracle.tolist() == tensor.tolist() == [0, 2, 2, 0]
