"""The assembler: a backend that writes the evaluation of a plan as bytecode instead of computing values. Bytecode has
one instruction per line, as defined in ``kungfu/native/policy/bytecode.h``. A program covers one side of a step, for
the native op `KungfuEvaluate`, or a whole step of all peers, for a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from kungfu.compiler.compiled_policies import CompiledPolicies, MessageLayout
from kungfu.compiler.evaluate import Evaluation, conclude, prepare
from kungfu.errors import InternalError
from kungfu.signal import NEST, SOURCES, VECTOR, Fold, Source
from kungfu.signal.operation import DType, Operation, SignalType

SUMMED = "summed"  # the input that holds the sum of the peers' piggybacked values


@dataclass(frozen=True, eq=False)
class Register:
    """The register that contains a value while bytecode runs."""

    number: int
    type: SignalType


States = Mapping[Fold, tuple[Register, ...]]


@dataclass(frozen=True)
class Bytecode:
    """A bytecode program, and the tables that the native op `KungfuEvaluate` needs to run the program."""

    text: str
    states: tuple[int, ...]  # the indices of the fields that the program uses, among the fields of all folds
    inputs: Mapping[str, DType]
    results: tuple[DType, ...]


def before_sync(plan: CompiledPolicies) -> Bytecode:
    """The bytecode of a step's first half, before the gradient all-reduce; computes this peer's piggybacked values."""
    backend, states = _begun(plan)
    return backend.bytecode(states=states, results=[prepare(plan, Evaluation(backend, states))])


def after_sync(plan: CompiledPolicies) -> Bytecode:
    """The bytecode of a step's second half, after the gradient all-reduce; computes outcome and new states."""
    if plan.exchanges:
        raise InternalError("the plan sends messages of its own, and one peer's bytecode can't wait for another peer")
    backend, states = _begun(plan)
    return _concluded(plan, backend, states, summed=backend.input(SUMMED, SignalType("float32", VECTOR)))


def whole_step(plan: CompiledPolicies) -> Bytecode:
    """The bytecode of a whole step for all peers of a cluster; computes the fields of the outcome."""
    backend, states = _begun(plan)
    piggybacked = prepare(plan, Evaluation(backend, states))
    return _concluded(plan, backend, states, summed=backend.exchanged(piggybacked, "piggybacked"))


def _begun(plan: CompiledPolicies) -> tuple[Assembler, States]:
    """A new assembler, and a register for every field of every fold's state."""
    backend = Assembler(plan.gradient_reductions)
    fields = {fold: fold.recurrence.updates for fold in plan.state_names}
    return backend, {fold: tuple(backend.register(one.type) for one in updates) for fold, updates in fields.items()}


def _concluded(plan: CompiledPolicies, backend: Assembler, states: States, *, summed: Register) -> Bytecode:
    evaluation = Evaluation(backend, states)
    outcome = conclude(plan, evaluation, summed=summed)
    kept = [one for fold in states for one in evaluation.renewed[fold]]
    return backend.bytecode(states=states, results=list(outcome), kept=kept)


@dataclass(frozen=True, eq=False)
class Assembler:
    """A backend that writes instructions and uses registers as values. See `kungfu.compiler.evaluate.Backend`.

    Each register is written once (static single assignment), but both sides of a branch write the branch's results."""

    reductions: Collection[str]  # the names of the gradient reductions; bytecode reads these as inputs
    code: list[str] = field(default_factory=list)
    inputs: dict[str, Register] = field(default_factory=dict)  # the registers that hold the step's values at the start
    constants: dict[tuple[DType, str], Register] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=count)  # the register numbers that are not used yet

    def bytecode(self, *, states: States, results: Sequence[Register], kept: Sequence[Register] = ()) -> Bytecode:
        """The instructions so far as bytecode, without the states of folds that are neither read nor updated."""
        read = {int(word) for line in self.code for word in line.split()[1:]} | {one.number for one in results}
        fields = enumerate(one for registers in states.values() for one in registers)
        needed = {index: one for index, one in fields if kept or one.number in read}
        head = [
            _numbered("states", needed.values()),
            _numbered("inputs", self.inputs.values()),
            *(f"constant {dtype} {register.number} {text}" for (dtype, text), register in self.constants.items()),
            _numbered("results", results),
            _numbered("kept", kept),
        ]
        given = {name: register.type.dtype for name, register in self.inputs.items()}
        return Bytecode("\n".join([*head, *self.code]), tuple(needed), given, tuple(one.type.dtype for one in results))

    def register(self, type: SignalType) -> Register:
        """A new, empty register."""
        return Register(next(self.numbers), type)

    def input(self, name: str, type: SignalType) -> Register:
        """The register that holds the input `name` of the step when the bytecode starts."""
        if name not in self.inputs:
            self.inputs[name] = self.register(type)
        return self.inputs[name]

    def write(self, name: str, operands: Sequence[Register], type: SignalType) -> Register:
        """Writes one instruction and returns the register of its result."""
        result = self.register(type)
        self.code.append(" ".join([name, str(result.number), *(str(one.number) for one in operands)]))
        return result

    def source(self, source: Source) -> Register:
        if source.type.shape == NEST:
            return self.register(source.type)  # no instruction reads the register: the nest's reductions are inputs
        return self.input(source.source, source.type)

    def given(self, name: str) -> Register | None:
        return self.input(name, SignalType("float32")) if name in self.reductions else None

    def constant(self, value: bool | int | float, dtype: DType) -> Register:
        # Equal constants, NaN included, have equal texts and share a register; a float keeps its last bit.
        text = float(np.float32(value)).hex() if dtype == "float32" else str(int(value))
        if (dtype, text) not in self.constants:
            self.constants[dtype, text] = self.register(SignalType(dtype))
        return self.constants[dtype, text]

    def cast(self, value: Register, dtype: DType) -> Register:
        if value.type.dtype == dtype:
            return value
        return self.write(f"to_{dtype}.{value.type.dtype}", [value], SignalType(dtype, value.type.shape))

    def apply(self, operation: Operation, operands: Sequence[Register], dtypes: Sequence[DType]) -> Register:
        given = [self.cast(one, dtype) for one, dtype in zip(operands, dtypes, strict=True)]
        result = operation.typing(tuple(one.type for one in given)).result
        return self.write(f"{operation.name}.{given[0].type.dtype}", given, result)

    def branch(
        self, on: Register, then: Callable[[], list[Register]], otherwise: Callable[[], list[Register]]
    ) -> list[Register]:
        # A jump over the `then` side; its length is known once that side is written.
        start = self._reserve()
        chosen = then()
        results = [self.register(one.type) for one in chosen]
        self._copy(chosen, results)
        # At the end of the `then` side, a jump over the `otherwise` side.
        middle = self._reserve()
        self._copy(otherwise(), results)
        self.code[start] = f"skip_unless {on.number} {middle - start}"
        self.code[middle] = f"skip {len(self.code) - middle - 1}"
        return results

    def packed(self, scalars: Sequence[Register], vectors: Sequence[Register]) -> Register:
        return self.write("join", [*scalars, *vectors], SignalType("float32", VECTOR))

    def unpacked(self, message: Register, layout: MessageLayout) -> list[Register]:
        number = SignalType("float32")
        singles = [
            self.write("take.float32", [message, self.constant(index, "int64")], number)
            for index in range(len(layout.scalars))
        ]
        at, parts = self.constant(len(layout.scalars), "int64"), []
        for _ in layout.vectors:
            size = self.input("size", SOURCES["size"].type)
            parts.append(self.write("part", [message, at, size], message.type))
            at = self.write("add.int64", [at, size], at.type)
        return [*singles, *parts]

    def exchanged(self, message: Register, tag: str) -> Register:
        return self.write("exchange", [message], message.type)

    def stacked(self, values: Sequence[Register], of: SignalType) -> Register:
        return self.write("join", values, SignalType(of.dtype, VECTOR))

    def _reserve(self) -> int:
        """Reserves the place of an instruction that is written later; returns its index."""
        self.code.append("")
        return len(self.code) - 1

    def _copy(self, values: Sequence[Register], results: Sequence[Register]) -> None:
        self.code.extend(f"copy {to.number} {one.number}" for one, to in zip(values, results, strict=True))


def _numbered(word: str, registers: Iterable[Register]) -> str:
    return " ".join([word, *(str(one.number) for one in registers)])
