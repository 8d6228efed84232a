"""What a map may compute: operations, each with a type rule and two twins.

An operation is a value: its name, the rule that types it, its NumPy twin, and the place of its TensorFlow twin. The
latter is a dotted name (``tf.`` is TensorFlow, ``twins.`` is ``kungfu.ops.tensorflow_twins``) and not a function, so
that a policy can be checked and explained without importing TensorFlow. The two twins must agree to float tolerance.

The operators of Python and the choice ``where`` stand here, because signals themselves are written with them; the
rest of the vocabulary is in ``kungfu.ops``, one line an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kungfu.errors import PolicyError

__all__ = [
    "NEST",
    "OPERATORS",
    "SCALAR",
    "VECTOR",
    "DType",
    "Operation",
    "SignalType",
    "Typing",
    "arithmetic",
    "choice",
    "fractional",
    "nest_reduction",
    "predicate",
    "vector_reduction",
]

DType = Literal["bool", "int64", "float32"]
SCALAR: tuple[str, ...] = ()
VECTOR: tuple[str, ...] = ("size",)  # one entry a peer, in rank order
NEST: tuple[str, ...] = ("nest",)  # the gradients: a list of tensors, one a variable


@dataclass(frozen=True)
class SignalType:
    """The dtype and shape of a signal: a scalar, a vector with one entry a peer, or the nest of the gradients."""

    dtype: DType
    shape: tuple[str, ...] = SCALAR

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(self.shape)}]" if self.shape else self.dtype


@dataclass(frozen=True)
class Typing:
    """What a rule concludes: the dtype that each operand is cast to first, and the type of the result."""

    operands: tuple[DType, ...]
    result: SignalType


Rule = Callable[[tuple[SignalType, ...]], Typing]


@dataclass(frozen=True)
class Operation:
    """One entry of the vocabulary; `symbol` is how Python writes it, where it is an operator."""

    name: str
    rule: Rule
    numpy: Callable[..., Any]
    tensorflow: str
    symbol: str = ""

    def typing(self, types: tuple[SignalType, ...]) -> Typing:
        """The operand and result types for inputs of these types; raises `PolicyError` that names the operation."""
        try:
            return self.rule(types)
        except PolicyError as error:
            given = ", ".join(str(one) for one in types)
            raise PolicyError(f"{self.name}({given}): {error}") from None


def arithmetic(types: tuple[SignalType, ...]) -> Typing:
    """Numbers; int64 mixed with float32 becomes float32."""
    return _elementwise(types, of=_promoted(types))


def fractional(types: tuple[SignalType, ...]) -> Typing:
    """Numbers, always computed in float32."""
    _promoted(types)
    return _elementwise(types, of="float32")


def integral(types: tuple[SignalType, ...]) -> Typing:
    """Whole numbers only."""
    if any(one.dtype != "int64" for one in types):
        raise PolicyError("takes int64 signals only, like step and size; divide float32 signals with / and kf.round")
    return _elementwise(types, of="int64")


def comparison(types: tuple[SignalType, ...]) -> Typing:
    """Two numbers, or two truth values, compared: bool."""
    both_bool = all(one.dtype == "bool" for one in types)
    dtype: DType = "bool" if both_bool else _promoted(types)
    return Typing((dtype,) * len(types), SignalType("bool", _broadcast(types)))


def order(types: tuple[SignalType, ...]) -> Typing:
    """Two numbers by size: bool."""
    return Typing((_promoted(types),) * len(types), SignalType("bool", _broadcast(types)))


def predicate(types: tuple[SignalType, ...]) -> Typing:
    """A question about a float32 number: bool."""
    _promoted(types)
    dtype: DType = "float32"
    return Typing((dtype,) * len(types), SignalType("bool", _broadcast(types)))


def logic(types: tuple[SignalType, ...]) -> Typing:
    """Truth values only."""
    if any(one.dtype != "bool" for one in types):
        raise PolicyError("takes bool signals only; compare first, as in (x > 0) & (y < 1), with the brackets")
    return _elementwise(types, of="bool")


def choice(types: tuple[SignalType, ...]) -> Typing:
    """A bool, and two numbers or two truth values to choose from."""
    if types[0].dtype != "bool":
        raise PolicyError("the first argument decides and must be bool; compare first, as in kf.where(x > 0, a, b)")
    rest = types[1:]
    dtype: DType = "bool" if all(one.dtype == "bool" for one in rest) else _promoted(rest)
    operands: tuple[DType, DType, DType] = ("bool", dtype, dtype)
    return Typing(operands, SignalType(dtype, _broadcast(types)))


def vector_reduction(types: tuple[SignalType, ...]) -> Typing:
    """A vector with one entry a peer becomes a float32 scalar."""
    if types[0].shape != VECTOR:
        raise PolicyError("takes a vector with one entry a peer; make one with ops.all_gather(x)")
    _promoted(types)
    return Typing(("float32",), SignalType("float32"))


def nest_reduction(types: tuple[SignalType, ...]) -> Typing:
    """The nest of the gradients becomes a float32 scalar."""
    if types[0].shape != NEST:
        raise PolicyError("takes training.grads or training.mean_grads; square a number as x * x")
    return Typing(("float32",), SignalType("float32"))


def _elementwise(types: tuple[SignalType, ...], *, of: DType) -> Typing:
    return Typing((of,) * len(types), SignalType(of, _broadcast(types)))


def _promoted(types: tuple[SignalType, ...]) -> DType:
    _broadcast(types)
    if any(one.dtype == "bool" for one in types):
        raise PolicyError("a bool is no number here; write kf.where(flag, 1, 0) to count it")
    return "int64" if all(one.dtype == "int64" for one in types) else "float32"


def _broadcast(types: tuple[SignalType, ...]) -> tuple[str, ...]:
    shapes = {one.shape for one in types} - {SCALAR}
    if NEST in shapes:
        raise PolicyError("the gradients are a nest of tensors; reduce them to a number with ops.norm_squared first")
    return shapes.pop() if shapes else SCALAR


def _floor_divide(x: Any, y: Any) -> Any:
    """``x // y``, and 0 where y is 0: TensorFlow would raise in the middle of a step."""
    return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y)))


def _modulo(x: Any, y: Any) -> Any:
    return np.where(y == 0, 0, np.mod(x, np.where(y == 0, 1, y)))


_ENTRIES = (
    Operation("add", arithmetic, np.add, "tf.math.add", "+"),
    Operation("subtract", arithmetic, np.subtract, "tf.math.subtract", "-"),
    Operation("multiply", arithmetic, np.multiply, "tf.math.multiply", "*"),
    Operation("divide", fractional, np.divide, "tf.math.divide", "/"),
    Operation("floor_divide", integral, _floor_divide, "twins.floor_divide", "//"),
    Operation("modulo", integral, _modulo, "twins.modulo", "%"),
    Operation("negative", arithmetic, np.negative, "tf.math.negative", "-"),
    Operation("abs", arithmetic, np.abs, "tf.math.abs"),
    Operation("less", order, np.less, "tf.math.less", "<"),
    Operation("less_equal", order, np.less_equal, "tf.math.less_equal", "<="),
    Operation("greater", order, np.greater, "tf.math.greater", ">"),
    Operation("greater_equal", order, np.greater_equal, "tf.math.greater_equal", ">="),
    Operation("equal", comparison, np.equal, "tf.math.equal", "=="),
    Operation("not_equal", comparison, np.not_equal, "tf.math.not_equal", "!="),
    Operation("and", logic, np.logical_and, "tf.math.logical_and", "&"),
    Operation("or", logic, np.logical_or, "tf.math.logical_or", "|"),
    Operation("not", logic, np.logical_not, "tf.math.logical_not", "~"),
    Operation("where", choice, np.where, "tf.where"),
)
OPERATORS = {entry.name: entry for entry in _ENTRIES}
