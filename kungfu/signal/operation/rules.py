"""Types of signals, and type rules: a rule maps operand types to their dtypes after casting and to the result type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kungfu.errors import PolicyError

DType = Literal["bool", "int64", "float32"]
Shape = tuple[str | int, ...]
SCALAR: Shape = ()
VECTOR: Shape = ("size",)  # one entry per peer, in rank order; a vector of a fixed length has the shape (length,)
NEST: Shape = ("nest",)  # the gradients: a list of tensors, one per variable


@dataclass(frozen=True)
class SignalType:
    """The dtype and shape of a signal: a scalar, a vector (one entry per peer, or a fixed length), or the gradients."""

    dtype: DType
    shape: Shape = SCALAR

    def extents(self, size: int) -> tuple[int, ...]:
        """The number of entries along each axis in a cluster of `size` peers; undefined for gradients."""
        return tuple(size if one == "size" else int(one) for one in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]" if self.shape else self.dtype


@dataclass(frozen=True)
class Typing:
    """The result of a type rule: the dtype to which each operand is cast, and the type of the result."""

    operands: tuple[DType, ...]
    result: SignalType


TypeRule = Callable[[tuple[SignalType, ...]], Typing]


# ---- entry by entry ------------------------------------------------------------------------------------------------


def arithmetic(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for arithmetic on numbers; int64 mixed with float32 is promoted to float32."""
    return _elementwise(types, of=_promoted(types))


def fractional(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for functions of numbers that are always computed in float32."""
    _promoted(types)
    return _elementwise(types, of="float32")


def comparison(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for comparing two numbers, or two truth values; the result is bool."""
    both_bool = all(one.dtype == "bool" for one in types)
    dtype: DType = "bool" if both_bool else _promoted(types)
    return Typing((dtype,) * len(types), SignalType("bool", _broadcast(types)))


def order(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for an order comparison of two numbers; the result is bool."""
    return Typing((_promoted(types),) * len(types), SignalType("bool", _broadcast(types)))


def predicate(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for a predicate of a float32 number; the result is bool."""
    _promoted(types)
    dtype: DType = "float32"
    return Typing((dtype,) * len(types), SignalType("bool", _broadcast(types)))


def logic(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for logical operations, which accept truth values only."""
    if any(one.dtype != "bool" for one in types):
        raise PolicyError("takes bool signals only; compare first, as in (x > 0) & (y < 1), with the brackets")
    return _elementwise(types, of="bool")


def choice(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for a choice: a bool condition, then two numbers or two truth values to choose from."""
    if types[0].dtype != "bool":
        raise PolicyError("the first argument decides and must be bool; compare first, as in kf.ops.where(x > 0, a, b)")
    rest = types[1:]
    dtype: DType = "bool" if all(one.dtype == "bool" for one in rest) else _promoted(rest)
    operands: tuple[DType, DType, DType] = ("bool", dtype, dtype)
    return Typing(operands, SignalType(dtype, _broadcast(types)))


def cast_to(dtype: DType) -> TypeRule:
    """The type rule for a cast to a dtype, from numbers or truth values of any shape except nests of gradients."""

    def rule(types: tuple[SignalType, ...]) -> Typing:
        return Typing((types[0].dtype,), SignalType(dtype, _broadcast(types)))

    return rule


# ---- vectors -------------------------------------------------------------------------------------------------------


def vector_reduction(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for reducing a vector of numbers to a float32 scalar."""
    _vector(types[0])
    _promoted(types)
    return Typing(("float32",), SignalType("float32"))


def entry_index(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for finding an entry of a vector of numbers; the result is the index of the entry."""
    _vector(types[0])
    _promoted(types)
    return Typing(("float32",), SignalType("int64"))


def vector_logic(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for reducing a vector of truth values to one truth value."""
    _flags(types[0])
    return Typing(("bool",), SignalType("bool"))


def numbering(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for reducing a vector of truth values to a whole number."""
    _flags(types[0])
    return Typing(("bool",), SignalType("int64"))


def entry(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for taking one entry of a vector by an index, or a vector of entries by a vector of indices."""
    vector, index = types
    _vector(vector)
    _whole(index)
    return Typing((vector.dtype, "int64"), SignalType(vector.dtype, _broadcast((index,))))


def scattered(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for replacing one entry of a vector; the operands are the vector, an index and the new value."""
    vector, index, value = types
    _vector(vector)
    _whole(index)
    if index.shape != SCALAR or value.shape != SCALAR:
        raise PolicyError("puts one number at one place; the place and the value must be scalars")
    both_bool = vector.dtype == value.dtype == "bool"
    dtype: DType = "bool" if both_bool else _promoted((vector, value))
    return Typing((dtype, "int64", dtype), SignalType(dtype, vector.shape))


def shifted(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for pushing a new entry into a vector of a fixed length."""
    vector, value = types
    if len(vector.shape) != 1 or not isinstance(vector.shape[0], int) or value.shape != SCALAR:
        raise PolicyError("takes a vector of a fixed length, as a fold's state can be, and a scalar")
    if vector.dtype != value.dtype:
        raise PolicyError("the newest entry must have the dtype of the vector; cast it with kf.ops.cast")
    return Typing((vector.dtype, vector.dtype), vector)


def place_numbers(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for the indices of a vector's entries: the vector may have any dtype; the result is int64."""
    _vector(types[0])
    return Typing((types[0].dtype,), SignalType("int64", types[0].shape))


def filled(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for repeating a scalar, the first operand, once per peer; the second is the number of peers."""
    if types[0].shape != SCALAR:
        raise PolicyError("puts one number in every place; give a scalar")
    return Typing((types[0].dtype, "int64"), SignalType(types[0].dtype, VECTOR))


def peers(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for the vector of all ranks; the operand is the number of peers."""
    return Typing(("int64",), SignalType("int64", VECTOR))


# ---- the gradients -------------------------------------------------------------------------------------------------


def nest_reduction(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for reducing one or two nests of gradients to a float32 scalar."""
    _nests(types)
    dtype: DType = "float32"
    return Typing((dtype,) * len(types), SignalType(dtype))


def nest_predicate(types: tuple[SignalType, ...]) -> Typing:
    """The type rule for a predicate of all gradients together; the result is bool."""
    _nests(types)
    return Typing(("float32",), SignalType("bool"))


# ---- parts of the rules --------------------------------------------------------------------------------------------


def _elementwise(types: tuple[SignalType, ...], *, of: DType) -> Typing:
    return Typing((of,) * len(types), SignalType(of, _broadcast(types)))


def _promoted(types: tuple[SignalType, ...]) -> DType:
    _broadcast(types)
    if any(one.dtype == "bool" for one in types):
        raise PolicyError("a bool is no number here; write kf.ops.where(flag, 1, 0) to count it")
    return "int64" if all(one.dtype == "int64" for one in types) else "float32"


def _broadcast(types: tuple[SignalType, ...]) -> Shape:
    """The shape of an elementwise result: a scalar broadcasts to any vector; two vectors must have the same length."""
    shapes = {one.shape for one in types} - {SCALAR}
    if NEST in shapes:
        raise PolicyError("the gradients are a nest of tensors; reduce them to a number with kf.ops.norm_squared first")
    if len(shapes) > 1:
        lengths = " and ".join(sorted(f"[{', '.join(map(str, one))}]" for one in shapes))
        raise PolicyError(f"vectors of lengths {lengths} do not go together; reduce one, or take an entry of it")
    return shapes.pop() if shapes else SCALAR


def _vector(type: SignalType) -> None:
    if type.shape == NEST:
        raise PolicyError(
            "the gradients are a nest of tensors, one for each variable, and a policy knows them as a whole only; "
            "reduce them to a number, as in kf.ops.norm_squared(training.grads)"
        )
    if type.shape == SCALAR:
        raise PolicyError("takes a vector with one entry per peer; make one with kf.ops.all_gather(x)")


def _flags(type: SignalType) -> None:
    _vector(type)
    if type.dtype != "bool":
        raise PolicyError("takes a vector of truth values; compare first, as in kf.ops.any(speeds < 0.8)")


def _whole(index: SignalType) -> None:
    if index.dtype != "int64":
        raise PolicyError('a place in a vector is a whole number; write kf.ops.cast(x, "int64") for a float32 one')


def _nests(types: tuple[SignalType, ...]) -> None:
    if any(one.shape != NEST for one in types):
        raise PolicyError("takes training.grads or training.mean_grads; square a number as x * x")
