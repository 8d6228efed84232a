"""The kernels: TensorFlow, NumPy and the native library say the same about every number, the awkward ones first."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kungfu.compiler.assembler import Assembler
from kungfu.compiler.fused.program import run_bytecode
from kungfu.compiler.lower import TensorFlowBackend
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


RULES = ("arithmetic", "fractional", "integral", "comparison", "order", "predicate", "logic", "choice", "rule")
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
    (given,) = run_bytecode(backend.bytecode(states=[], results=[result]), [], known)
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


PER_PEER = SignalType("float32", VECTOR)
FLAGS = SignalType("bool", VECTOR)
WHOLE = SignalType("int64")
NEST_TYPE = SignalType("float32", NEST)


@pytest.mark.parametrize("vector", [*VECTORS, [np.nan], [np.nan, np.nan], [-0.0, 0.0]], ids=str)
@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_the_place_of_an_extreme_passes_over_nan(name: str, vector: list[float]) -> None:
    oracle, tensor = both(VOCABULARY[name], [np.array(vector, np.float32)], (PER_PEER,))
    assert oracle == tensor
    present = [one for one in vector if not np.isnan(one)]
    chosen = {"argmin": min, "argmax": max}[name]
    assert vector[int(oracle)] == chosen(present) if present else oracle == 0


@pytest.mark.parametrize("vector", [[True], [False], [True, False, True], [False, False], [True, True]], ids=str)
def test_reductions_of_truth_values_agree(vector: list[bool]) -> None:
    for name, expected in (("any", any(vector)), ("all", all(vector)), ("count", sum(vector))):
        oracle, tensor = both(VOCABULARY[name], [np.array(vector)], (FLAGS,))
        assert oracle == tensor == expected


@pytest.mark.parametrize("vector", [*VECTORS, [np.nan], [np.nan, 4.0, np.nan, 2.0]], ids=str)
@pytest.mark.parametrize("name", ["mean_present", "median_present", "min_present", "max_present"])
def test_reductions_of_what_was_seen_leave_nan_out(name: str, vector: list[float]) -> None:
    oracle, tensor = both(VOCABULARY[name], [np.array(vector, np.float32)], (PER_PEER,))
    np.testing.assert_allclose(tensor, oracle, rtol=1e-6)
    present = [one for one in vector if not np.isnan(one)]
    np.testing.assert_equal(np.isnan(oracle), not present)


@pytest.mark.parametrize(
    ("index", "expected"), [(0, 5.0), (2, 7.0), (-1, 7.0), (-3, 5.0), (3, np.nan), (-4, np.nan), (2**40, np.nan)]
)
def test_an_entry_is_taken_from_either_end_and_is_nan_outside(index: int, expected: float) -> None:
    vector = np.array([5, 6, 7], np.float32)
    oracle, tensor = both(VOCABULARY["take"], [vector, np.int64(index)], (PER_PEER, WHOLE))
    np.testing.assert_equal([float(oracle), float(tensor)], [expected, expected])


def test_a_vector_of_places_takes_a_vector_of_entries() -> None:
    places = np.array([2, 0, 9], np.int64)
    for dtype, nothing in (("int64", 0), ("bool", False)):
        vector = np.array([1, 1, 1], dtype)
        types = (SignalType(dtype, VECTOR), SignalType("int64", VECTOR))
        oracle, tensor = both(VOCABULARY["take"], [vector, places], types)
        assert oracle.tolist() == tensor.tolist() == [1, 1, nothing]


@pytest.mark.parametrize(("index", "expected"), [(0, [9, 6, 7]), (-1, [5, 6, 9]), (3, [5, 6, 7]), (-4, [5, 6, 7])])
def test_a_number_is_put_in_a_place_that_there_is(index: int, expected: list[float]) -> None:
    operands = [np.array([5, 6, 7], np.float32), np.int64(index), np.float32(9)]
    oracle, tensor = both(VOCABULARY["scatter"], operands, (PER_PEER, WHOLE, SignalType("float32")))
    assert oracle.tolist() == tensor.tolist() == expected


def test_the_newest_entry_pushes_the_oldest_out() -> None:
    operands = [np.array([1, 2, 3], np.float32), np.float32(np.nan)]
    oracle, tensor = both(VOCABULARY["push"], operands, (SignalType("float32", (3,)), SignalType("float32")))
    np.testing.assert_equal([oracle, tensor], [[2, 3, np.nan], [2, 3, np.nan]])


def test_vectors_are_made_of_one_number_and_of_the_ranks() -> None:
    oracle, tensor = both(VOCABULARY["fill"], [np.bool_(True), np.int64(3)], (SignalType("bool"), WHOLE))
    assert oracle.tolist() == tensor.tolist() == [True, True, True]
    oracle, tensor = both(VOCABULARY["ranks"], [np.int64(3)], (WHOLE,))
    assert oracle.tolist() == tensor.tolist() == [0, 1, 2]


def test_the_places_of_a_vector_are_numbered_from_0() -> None:
    for dtype, type in ((np.float32, PER_PEER), (np.bool_, SignalType("bool", (3,)))):
        oracle, tensor = both(VOCABULARY["places"], [np.array([5, 0, 7]).astype(dtype)], (type,))
        assert oracle.tolist() == tensor.tolist() == [0, 1, 2]
        assert oracle.dtype == tensor.dtype == np.int64


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2.9, 2), (-2.9, -2), (np.nan, 0), (np.inf, 0), (-np.inf, 0), (1e30, 2**53), (-1e30, -(2**53)), (-0.5, 0)],
)
def test_a_number_becomes_whole_without_surprise(value: float, expected: int) -> None:
    oracle, tensor = both(VOCABULARY["to_int64"], [np.float32(value)], (SignalType("float32"),))
    assert oracle == tensor == expected


def test_gradients_reduce_to_single_numbers() -> None:
    nest = [np.array([3.0, -4.0], np.float32), np.array([[1.0], [-2.0]], np.float32), np.float32(2)]
    other = [np.array([1.0, 1.0], np.float32), np.array([[2.0], [0.5]], np.float32), np.float32(-1)]
    for name, given, expected in (("dot", [nest, other], -1 + 2 - 1 - 2), ("max_abs", [nest], 4)):
        oracle, tensor = both(VOCABULARY[name], given, (NEST_TYPE,) * len(given))
        assert oracle == tensor == expected
    oracle, tensor = both(VOCABULARY["all_finite"], [nest], (NEST_TYPE,))
    assert bool(oracle)
    assert bool(tensor)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_bad_entry_among_the_gradients_is_seen(bad: float) -> None:
    nest = [np.array([3.0, -4.0], np.float32), np.array([bad], np.float32)]
    oracle, tensor = both(VOCABULARY["all_finite"], [nest], (NEST_TYPE,))
    assert not oracle
    assert not tensor
    oracle, tensor = both(VOCABULARY["max_abs"], [nest], (NEST_TYPE,))
    np.testing.assert_equal([float(oracle), float(tensor)], [bad, bad])


@pytest.mark.parametrize(("name", "nothing"), [("dot", 0), ("max_abs", 0), ("all_finite", True)])
def test_no_gradients_at_all_are_no_special_case(name: str, nothing: float) -> None:
    given: list[Any] = [[], []] if name == "dot" else [[]]
    oracle, tensor = both(VOCABULARY[name], given, (NEST_TYPE,) * len(given))
    assert oracle == tensor == nothing


def test_every_operation_of_the_vocabulary_is_tested_here_or_entry_by_entry() -> None:
    here = Path(__file__).read_text()
    untested = [one.name for one in VOCABULARY.values() if one not in ELEMENTWISE and f'"{one.name}"' not in here]
    assert not [name for name in untested if VOCABULARY[name] not in ruled_by("vector_reduction", "nest_reduction")]
