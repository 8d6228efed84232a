"""The writer of NumPy programs: a backend that computes nothing, and writes the evaluation of a plan down as calls.

What all peers have in common is computed once, and what each has for itself in one call for all of them, where NumPy
gives the same bits then: for arithmetic and comparisons, which are rounded exactly, and not for a logarithm.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kungfu.compiler.plan import MessageLayout
from kungfu.compiler.replay.numpy_backend import Absent
from kungfu.compiler.replay.numpy_program import SIZE, Cell, Cells, Instruction
from kungfu.errors import UsageError
from kungfu.signal import NEST, SCALAR, VECTOR, Source
from kungfu.signal.operation import DType, Operation, SignalType

_MESSAGE = SignalType("float32", VECTOR)
_FLAG = SignalType("bool")
_ZERO = np.int64(0)

# Of two numbers that all peers have in common: the arithmetic of NumPy's scalars, which takes a tenth of the time.
_OF_SCALARS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "negative": operator.neg,
    "abs": abs,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.invert,
    "where": lambda condition, then, otherwise: then if condition else otherwise,
    "floor_divide": lambda x, y: x // y if y else _ZERO,
    "modulo": lambda x, y: x % y if y else _ZERO,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "is_finite": np.isfinite,
    "round": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "sqrt": np.sqrt,
}
# Entry by entry and rounded exactly: the same for one entry as for many.
_ENTRY_BY_ENTRY = frozenset({*_OF_SCALARS, "to_float32", "to_int64", "to_bool"})


@dataclass(eq=False)
class ProgramWriter:
    """Writes instructions; its values are cells. See `kungfu.compiler.evaluate.Backend`.

    Args:
        given_reductions: The gradient reductions that are offered in place of the gradients; whether all peers have
            them in common, by name.
        code: The instructions so far.
        inputs: The cells that begin with a source or a reduction, by its name.
        constants: The values that cells begin with.
        cells: How many cells there are.
    """

    given_reductions: Mapping[str, bool]
    code: list[Instruction] = field(default_factory=list)
    inputs: dict[str, Cell] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    cells: int = SIZE + 1

    def cell(self, type: SignalType, *, shared: bool) -> Cell:
        """A cell that nothing is in yet."""
        self.cells += 1
        return Cell(self.cells - 1, type, shared)

    def write(self, call: Callable[..., Any], operands: Sequence[Cell], type: SignalType, *, shared: bool) -> Cell:
        """One instruction, and the cell with what it gives."""
        result = self.cell(type, shared=shared)
        self.code.append(_instruction(call, [one.number for one in operands], result.number))
        return result

    def input(self, name: str, type: SignalType, *, shared: bool) -> Cell:
        """The cell that begins with what the step offers under this name."""
        if name not in self.inputs:
            self.inputs[name] = self.cell(type, shared=shared)
        return self.inputs[name]

    def for_each_peer(self, cell: Cell) -> Cell:
        """The cell with one value for each peer."""
        if not cell.shared:
            return cell
        return self.write(lambda value, size: np.stack([value] * size), [cell, _SIZE_CELL], cell.type, shared=False)

    # ---- what the evaluation asks of a backend -------------------------------------------------------------------

    def source(self, source: Source) -> Cell:
        return self.input(source.source, source.type, shared=source.placement == "agreed")

    def given(self, name: str) -> Cell | None:
        if name not in self.given_reductions:
            return None
        return self.input(name, SignalType("float32"), shared=self.given_reductions[name])

    def constant(self, value: bool | int | float, dtype: DType) -> Cell:
        made = self.cell(SignalType(dtype), shared=True)
        self.constants[made.number] = np.asarray(value, dtype)[()]
        return made

    def cast(self, value: Cell, dtype: DType) -> Cell:
        if value.type.dtype == dtype or value.type.shape == NEST:
            return value
        type = SignalType(dtype, value.type.shape)
        return self.write(lambda x: x.astype(dtype), [value], type, shared=value.shared)

    def apply(self, operation: Operation, operands: Sequence[Cell], dtypes: Sequence[DType]) -> Cell:
        given = [self.cast(one, dtype) for one, dtype in zip(operands, dtypes, strict=True)]
        result = operation.typing(tuple(one.type for one in given)).result
        shared = all(one.shared for one in given)
        shapes = {one.type.shape for one in given}
        if shared and shapes == {SCALAR} and operation.name in _OF_SCALARS:
            return self.write(_OF_SCALARS[operation.name], given, result, shared=True)
        if operation.name in _ENTRY_BY_ENTRY and NEST not in shapes and not (shared and shapes == {SCALAR}):
            return self.write(_at_once(operation, given), given, result, shared=shared)
        if shared and operation.name == "take" and given[1].type.shape == SCALAR:
            return self.write(_entry_of(result.dtype), given, result, shared=True)
        if shared:
            return self.write(_once(operation, given, result.dtype), given, result, shared=True)
        return self.write(_one_by_one(operation, given, result.dtype), [_SIZE_CELL, *given], result, shared=False)

    def all_finite(self, value: Cell) -> Cell:
        if value.type.shape == SCALAR:
            return self.write(np.isfinite, [value], _FLAG, shared=value.shared)
        return self.write(lambda x: np.isfinite(x).all(axis=-1), [value], _FLAG, shared=value.shared)

    def blank(self, type: SignalType) -> Cell:
        nothing = np.nan if type.dtype == "float32" else 0
        return self.write(
            lambda size: np.full(type.extents(size), nothing, type.dtype)[()], [_SIZE_CELL], type, shared=True
        )

    def branch(self, on: Cell, then: Callable[[], list[Cell]], otherwise: Callable[[], list[Cell]]) -> list[Cell]:
        before, self.code = self.code, []
        taken = then()
        taken_code, self.code = self.code, []
        other = otherwise()
        other_code, self.code = self.code, []
        results = []
        for one, two in zip(taken, other, strict=True):
            # Where the two sides differ, each peer has its own value.
            shared = one.shared and two.shared
            result = self.cell(one.type, shared=shared)
            for code, side in ((taken_code, one), (other_code, two)):
                self.code = code
                known = side if shared else self.for_each_peer(side)
                code.append(_instruction(lambda value: value, [known.number], result.number))
            results.append(result)
        before.append(_choice(on, taken_code, other_code))
        self.code = before
        return results

    def scattered(self, value: Cell) -> Cell:
        return self.write(_diagonal, [_SIZE_CELL, self.for_each_peer(value)], _MESSAGE, shared=False)

    def packed(self, scalars: Sequence[Cell], vectors: Sequence[Cell]) -> Cell:
        parts, first = [*scalars, *vectors], len(scalars)

        def joined(size: int, *values: Any) -> Any:
            message = np.empty((size, first + size * (len(values) - first)), np.float32)
            for at, value in enumerate(values[:first]):
                message[:, at] = value
            for at, value in enumerate(values[first:]):
                message[:, first + at * size : first + (at + 1) * size] = value
            return message

        return self.write(joined, [_SIZE_CELL, *parts], _MESSAGE, shared=False)

    def unpacked(self, message: Cell, layout: MessageLayout) -> list[Cell]:
        first = len(layout.scalars)
        number = SignalType("float32")
        singles = [
            self.write(lambda x, at=at: x[..., at], [message], number, shared=message.shared) for at in range(first)
        ]
        return singles + [
            self.write(_part(first, at), [_SIZE_CELL, message], _MESSAGE, shared=message.shared)
            for at in range(len(layout.vectors))
        ]

    def averaged(self, value: Cell) -> Cell:
        return self.write(lambda size, x: x / np.float32(size), [_SIZE_CELL, value], value.type, shared=value.shared)

    def exchanged(self, message: Cell, tag: str) -> Cell:
        # Added up one after the other, in rank order; a sum of NumPy may take another order.
        return self.write(lambda x: np.add.accumulate(x, axis=0)[-1], [message], _MESSAGE, shared=True)

    def stacked(self, values: Sequence[Cell], dtype: DType) -> Cell:
        own = [one.shared for one in values]

        def of_rank_0(*given: Any) -> Any:
            return np.asarray([x if common else x[0] for x, common in zip(given, own, strict=True)], dtype)

        return self.write(of_rank_0, values, SignalType(dtype, VECTOR), shared=True)

    def rows(self, vectors: Sequence[Cell], dtype: DType) -> Cell:
        own = [one.shared for one in vectors]

        def of_rank_0(size: int, *given: Any) -> Any:
            if not given:
                return np.zeros((0, size), dtype)
            return np.stack([x if common else x[0] for x, common in zip(given, own, strict=True)])

        return self.write(of_rank_0, [_SIZE_CELL, *vectors], SignalType(dtype, VECTOR), shared=True)


_SIZE_CELL = Cell(SIZE, SignalType("int64"), shared=True)


# ---- instructions ----------------------------------------------------------------------------------------------------


def _instruction(call: Callable[..., Any], operands: Collection[int], result: int) -> Instruction:
    """The call with what is in its operands' cells; written out for few of them, which is what most calls take."""
    places = tuple(operands)
    if len(places) == 1:
        (first,) = places

        def run(cells: Cells) -> None:
            cells[result] = call(cells[first])

    elif len(places) == 2:
        first, second = places

        def run(cells: Cells) -> None:
            cells[result] = call(cells[first], cells[second])

    elif len(places) == 3:
        first, second, third = places

        def run(cells: Cells) -> None:
            cells[result] = call(cells[first], cells[second], cells[third])

    else:

        def run(cells: Cells) -> None:
            cells[result] = call(*[cells[one] for one in places])

    return run


def _choice(on: Cell, then: Sequence[Instruction], otherwise: Sequence[Instruction]) -> Instruction:
    """One of two lists of instructions, by what rank 0 has in a cell."""
    place = on.number
    common = on.shared

    def run(cells: Cells) -> None:
        chosen = cells[place] if common else cells[place][0]
        for one in then if chosen else otherwise:
            one(cells)

    return run


def _diagonal(size: int, values: Any) -> Any:
    """For each peer a vector with its own value in its own place, and 0 in the others."""
    made = np.zeros((size, size), np.float32)
    made.flat[:: size + 1] = values
    return made


def _part(first: int, at: int) -> Callable[[int, Any], Any]:
    """A vector out of a message that begins with so many numbers."""
    return lambda size, message: message[..., first + at * size : first + (at + 1) * size]


# ---- operations ------------------------------------------------------------------------------------------------------


def _entry_of(dtype: DType) -> Callable[[Any, Any], Any]:
    """An entry of a vector that all peers have in common; see `numpy_kernels.take`."""
    nothing = np.asarray(np.nan if dtype == "float32" else 0, dtype)[()]

    def entry(vector: Any, index: Any) -> Any:
        count, at = len(vector), int(index)
        at = at + count if at < 0 else at
        return vector[at] if 0 <= at < count else nothing

    return entry


def _once(operation: Operation, operands: Sequence[Cell], dtype: DType) -> Callable[..., Any]:
    """The operation on what all peers have in common."""
    kernel, wanted = operation.numpy, np.dtype(dtype)
    reads_gradients = any(one.type.shape == NEST for one in operands)

    def call(*given: Any) -> Any:
        if reads_gradients:
            _check(given)
        found = kernel(*given)
        return (
            found if getattr(found, "dtype", None) == wanted and found.shape else np.asarray(found).astype(wanted)[()]
        )

    return call


def _at_once(operation: Operation, operands: Sequence[Cell]) -> Callable[..., Any]:
    """The operation on all entries of all peers; beside vectors the numbers of the peers stand as a column."""
    kernel = operation.numpy
    vectors = any(one.type.shape != SCALAR for one in operands)
    columns = tuple(vectors and not one.shared and one.type.shape == SCALAR for one in operands)
    if not any(columns):
        return kernel
    return lambda *given: kernel(*[x[:, None] if column else x for x, column in zip(given, columns, strict=True)])


def _one_by_one(operation: Operation, operands: Sequence[Cell], dtype: DType) -> Callable[..., Any]:
    """The operation for one peer after the other."""
    kernel, common = operation.numpy, [one.shared for one in operands]

    def call(size: int, *given: Any) -> Any:
        found = []
        for peer in range(size):
            own = [x if shared else x[peer] for x, shared in zip(given, common, strict=True)]
            _check(own)
            found.append(np.asarray(kernel(*own)).astype(dtype))
        return np.stack(found)

    return call


def _check(values: Sequence[Any]) -> None:
    """Gradients that were not given are an error where the plan does need them."""
    for one in values:
        if isinstance(one, Absent):
            raise UsageError(one.message)
