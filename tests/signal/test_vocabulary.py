"""The kernels: TensorFlow, NumPy and the native library say the same about every number, the awkward ones first."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from kungfu.compiler.assembler import Assembler
from kungfu.compiler.lower import TensorFlowBackend, run_bytecode
from kungfu.compiler.replay import NumpyBackend
from kungfu.errors import PolicyError
from kungfu.signal import NEST, VECTOR, Operation, SignalType
from kungfu.signal.operation import VOCABULARY, DType

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.25, 1e-30, 1e30, np.inf, -np.inf, np.nan]
INTS = [0, 1, -1, 2, 3, -7, 50, 2**40]
BOOLS = [False, True]
VALUES: dict[DType, list[Any]] = {"float32": FLOATS, "int64": INTS, "bool": BOOLS}

VECTORS = [[1.0], [3.0, 1.0], [2.0, -1.0, 7.0], [4.0, 1.0, 2.0, 2.0], [1.0, np.nan], [np.inf, 1.0], [-np.inf, 0.0, 1.0]]


def named(operation: Operation) -> str:
    return operation.name


def ruled_by(*names: str) -> list[Operation]:
    return [one for one in VOCABULARY.values() if one.rule.__name__ in names]


RULES = ("arithmetic", "fractional", "comparison", "order", "predicate", "logic", "choice", "rule")
ELEMENTWISE = ruled_by(*RULES)  # the rules of casts are all called "rule"


def arity(operation: Operation) -> int:
    unary = {"negative", "abs", "not", "sqrt", "exp", "log", "round", "floor", "ceil", "is_finite"}
    unary |= {"to_bool", "to_int64", "to_float32"}
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
        (oracle,) = NumpyBackend({}, 1).apply(operation, [(one,) for one in operands], typing.operands)
    tensor = TensorFlowBackend({}, lambda vectors, tag: vectors).apply(operation, operands, typing.operands)
    assert str(np.asarray(oracle).dtype) == tensor.dtype.name == typing.result.dtype
    if all(one.shape != NEST for one in types):
        native = in_a_listing(operation, operands, types)
        assert str(native.dtype) == typing.result.dtype
        np.testing.assert_allclose(native.reshape(tensor.shape), tensor, rtol=1e-6, err_msg=operation.name)
    return oracle, tensor.numpy()


def in_a_listing(operation: Operation, operands: list[Any], types: tuple[SignalType, ...]) -> Any:
    """The operation in the native library, as a vector."""
    backend = Assembler(reductions=())
    registers = [backend.input(f"operand_{place}", one) for place, one in enumerate(types)]
    result = backend.apply(operation, registers, operation.typing(types).operands)
    known = {f"operand_{place}": one for place, one in enumerate(operands)}
    (given,) = run_bytecode(backend.bytecode(states={}, results=[result]), [], known)
    return given.numpy()


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


PER_PEER, FLAGS, PLACES = SignalType("float32", VECTOR), SignalType("bool", VECTOR), SignalType("int64", VECTOR)
WHOLE, NUMBER, GRADIENTS = SignalType("int64"), SignalType("float32"), SignalType("float32", NEST)
SOME, THREE = [4.0, 1.0, 2.0, 3.0], [5.0, 6.0, 7.0]
NESTED, OTHERS = [[3.0, -4.0], [[1.0], [-2.0]], 2.0], [[1.0, 1.0], [[2.0], [0.5]], -1.0]
ROWS: list[tuple[str, list[tuple[SignalType, Any]], Any]] = [
    *(
        (name, [(PER_PEER, SOME)], one)
        for name, one in zip(("sum", "mean", "min", "max"), (10, 2.5, 1, 4), strict=True)
    ),
    ("median", [(PER_PEER, SOME)], 2.5),
    # Whole division by zero is zero, and stops nothing.
    ("floor_divide", [(WHOLE, 7), (WHOLE, 0)], 0),
    ("modulo", [(WHOLE, 7), (WHOLE, 0)], 0),
    # A rest has the sign of the divisor, and fits the quotient, as Python's do.
    *(
        (name, [(NUMBER, a), (NUMBER, b)], value)
        for a, b, quotient, rest in [
            (7.5, 2, 3, 1.5),
            (-7.5, 2, -4, 0.5),
            (7.5, -2, -4, -0.5),
            (-1, math.inf, -1, math.inf),
        ]
        for name, value in (("floor_divide", quotient), ("modulo", rest))
    ),
    ("floor_divide", [(NUMBER, 1), (NUMBER, 0.1)], 9),
    ("floor_divide", [(NUMBER, 2.0**23 + 1), (NUMBER, 1)], 2.0**23 + 1),
    ("floor_divide", [(NUMBER, -7), (NUMBER, 0)], -math.inf),
    ("modulo", [(NUMBER, -7), (NUMBER, 0)], math.nan),
    ("power", [(NUMBER, 2), (NUMBER, -2)], 0.25),
    ("power", [(NUMBER, -8), (NUMBER, 1 / 3)], math.nan),
    # Halves are rounded to the even number.
    ("round", [(PER_PEER, [0.5, 1.5, 2.5, -0.5])], [0, 2, 2, 0]),
    *(("to_int64", [(NUMBER, one)], whole) for one, whole in [(2.9, 2), (-2.9, -2), (-0.5, 0), (math.nan, 0)]),
    *(("to_int64", [(NUMBER, sign * math.inf)], 0) for sign in (1, -1)),
    *(("to_int64", [(NUMBER, sign * 1e30)], sign * 2**53) for sign in (1, -1)),
    # An entry is taken from either end, and is nothing outside.
    *(("take", [(PER_PEER, THREE), (WHOLE, at)], one) for at, one in [(0, 5), (2, 7), (-1, 7), (-3, 5)]),
    *(("take", [(PER_PEER, THREE), (WHOLE, at)], math.nan) for at in (3, -4, 2**40)),
    ("take", [(PLACES, [1, 1, 1]), (PLACES, [2, 0, 9])], [1, 1, 0]),
    ("take", [(FLAGS, [True, True, True]), (PLACES, [2, 0, 9])], [True, True, False]),
    # A number is put in a place that there is.
    *(
        ("scatter", [(PER_PEER, THREE), (WHOLE, at), (NUMBER, 9)], one)
        for at, one in [(0, [9, 6, 7]), (-1, [5, 6, 9]), (3, THREE), (-4, THREE)]
    ),
    ("push", [(SignalType("float32", (3,)), [1, 2, 3]), (NUMBER, math.nan)], [2, 3, math.nan]),
    ("fill", [(SignalType("bool"), True), (WHOLE, 3)], [True, True, True]),
    ("ranks", [(WHOLE, 3)], [0, 1, 2]),
    ("places", [(PER_PEER, THREE)], [0, 1, 2]),
    ("places", [(SignalType("bool", (3,)), [True, False, True])], [0, 1, 2]),
    *(
        (name, [(FLAGS, vector)], made(vector))
        for vector in ([True], [False], [True, False, True], [False, False], [True, True])
        for name, made in (("any", any), ("all", all), ("count", sum))
    ),
    ("norm_squared", [(GRADIENTS, NESTED)], 9 + 16 + 1 + 4 + 4),
    ("dot", [(GRADIENTS, NESTED), (GRADIENTS, OTHERS)], 3 - 4 + 2 - 1 - 2),
    ("max_abs", [(GRADIENTS, NESTED)], 4),
    ("all_finite", [(GRADIENTS, NESTED)], True),
    *(("all_finite", [(GRADIENTS, [[3.0], [bad]])], False) for bad in (math.nan, math.inf)),
    *(("max_abs", [(GRADIENTS, [[3.0], [bad]])], bad) for bad in (math.nan, math.inf)),
    # No gradients at all are no special case.
    ("norm_squared", [(GRADIENTS, [])], 0),
    ("dot", [(GRADIENTS, []), (GRADIENTS, [])], 0),
    ("max_abs", [(GRADIENTS, [])], 0),
    ("all_finite", [(GRADIENTS, [])], True),
]


@pytest.mark.parametrize(("name", "given", "expected"), ROWS)
def test_an_operation_means_what_it_is_called(name: str, given: list[tuple[SignalType, Any]], expected: Any) -> None:
    operands = [
        [np.array(leaf, np.float32) for leaf in value] if type == GRADIENTS else np.array(value, type.dtype)
        for type, value in given
    ]
    oracle, tensor = both(VOCABULARY[name], operands, tuple(type for type, _ in given))
    np.testing.assert_array_equal(oracle, expected)
    np.testing.assert_array_equal(tensor, expected)


@pytest.mark.parametrize("vector", [*VECTORS, [np.nan], [np.nan, np.nan], [-0.0, 0.0]], ids=str)
@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_the_place_of_an_extreme_passes_over_nan(name: str, vector: list[float]) -> None:
    oracle, tensor = both(VOCABULARY[name], [np.array(vector, np.float32)], (PER_PEER,))
    assert oracle == tensor
    present = [one for one in vector if not np.isnan(one)]
    chosen = {"argmin": min, "argmax": max}[name]
    assert vector[int(oracle)] == chosen(present) if present else oracle == 0


@pytest.mark.parametrize("vector", [*VECTORS, [np.nan], [np.nan, 4.0, np.nan, 2.0]], ids=str)
@pytest.mark.parametrize("name", [f"{name}_present" for name in ("sum", "mean", "median", "min", "max")])
def test_reductions_of_what_was_seen_leave_nan_out(name: str, vector: list[float]) -> None:
    oracle, tensor = both(VOCABULARY[name], [np.array(vector, np.float32)], (PER_PEER,))
    np.testing.assert_allclose(tensor, oracle, rtol=1e-6)
    present = [one for one in vector if not np.isnan(one)]
    np.testing.assert_equal(np.isnan(oracle), not present)


def test_the_spread_of_what_was_seen_is_over_their_number():
    spread, _ = both(VOCABULARY["std_present"], [np.array([1.0, np.nan, 3.0], np.float32)], (PER_PEER,))
    assert spread == 1.0


def test_every_operation_is_tested_here_by_name_or_by_its_rule() -> None:
    named_here = {name for name, *_ in ROWS} | {"argmin", "argmax"}
    untested = set(VOCABULARY.values()) - {*ELEMENTWISE, *ruled_by("vector_reduction")}
    assert {one.name for one in untested} <= named_here
