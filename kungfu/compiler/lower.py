"""Lower: turns a plan into TensorFlow ops, and its folds into variables that the compiled program owns.

Nothing is assigned before the very end of `Program.conclude`, so a failing step leaves every state unchanged. Nodes
needed on both sides of the all-reduce are computed twice: this is cheap, and no value is carried from side to side.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu import native
from kungfu.compiler.assembler import SUMMED, Bytecode, after_sync, before_sync
from kungfu.compiler.compiled_policies import CompiledPolicies, MessageLayout, Outcome
from kungfu.compiler.evaluate import Evaluation, conclude, is_computed, prepare, reduce_gradients
from kungfu.control.action import mask_of
from kungfu.errors import InternalError
from kungfu.signal import Fold, OnRescale, Source
from kungfu.signal.operation import NEST, DType, Operation, SignalType
from kungfu.signal.sources import Placement

AllReduce = Callable[[list[tf.Tensor], str], Sequence[tf.Tensor]]
_DTYPES = {"bool": tf.bool, "int64": tf.int64, "float32": tf.float32}


@dataclass(frozen=True, eq=False)
class FoldVariable:
    """One field of a fold's state: its variable, its placement, and the effect of a rescale.

    Attributes:
        name: The name, equal on every peer and in records.
        variable: The value between two steps.
        placement: "agreed" if peers share the value, "local" if each peer has a separate value.
        on_rescale: "keep" or "reset" the value on a rescale, or "convert" it, which the fold's dataflow does itself.
        init: The first value of every entry.
    """

    name: str
    variable: tf.Variable
    placement: Placement
    on_rescale: OnRescale
    init: bool | int | float


@dataclass(frozen=True, eq=False)
class Program:
    """A plan in TensorFlow; runs identically in eager mode, in a `tf.function`, and in a `tf.while_loop`.

    This class computes the two halves of a step op by op; `BytecodeProgram` computes each half in one op."""

    plan: CompiledPolicies
    states: Mapping[Fold, tuple[FoldVariable, ...]]

    @property
    def variables(self) -> list[FoldVariable]:
        """The states of all folds, in an order and under names that are the same on every peer."""
        return [one for fields in self.states.values() for one in fields]

    def reset_on_rescale(self) -> None:
        """Resets the folds declared with "reset"; called by the runtime when the cluster has changed."""
        for one in self.variables:
            if one.on_rescale == "reset":
                one.variable.assign(np.full(one.variable.shape, one.init, one.variable.dtype.as_numpy_dtype))

    @tf.autograph.experimental.do_not_convert
    def gradient_reductions(self, sources: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """The numbers that the plan computes from this step's gradients, by name; minus infinity if not needed.

        The caller adds these numbers to the sources of `piggybacked` and `conclude`."""
        backend = TensorFlowBackend(sources, _no_messages)
        # The attachment may have computed a norm while it copied; the mean gradients are unknown before the message.
        return {
            name: reduce_gradients(one, Evaluation(backend, self.held()))
            for name, one in self.plan.gradient_reductions.items()
            if name not in sources and all(nest in sources for nest in one.sources)
        }

    @tf.autograph.experimental.do_not_convert
    def computes(self, name: str, sources: Mapping[str, Any]) -> bool | tf.Tensor:
        """True if this step needs the gradient reduction `name`, as far as this is known before the step."""
        one = self.plan.gradient_reductions.get(name)
        # No rule needs the reduction, or a rule needs it in every step.
        if one is None or not one.gates:
            return one is not None
        return is_computed(one, Evaluation(TensorFlowBackend(sources, _no_messages), self.held()))

    @tf.autograph.experimental.do_not_convert
    def piggybacked(self, sources: Mapping[str, Any]) -> tf.Tensor:
        """This peer's float32 vector for the gradient all-reduce, from the sources known before the all-reduce."""
        return prepare(self.plan, Evaluation(TensorFlowBackend(sources, _no_messages), self.held()))

    @tf.autograph.experimental.do_not_convert
    def conclude(self, sources: Mapping[str, Any], summed: tf.Tensor, all_reduce: AllReduce) -> Outcome:
        """The decisions of this step, from all sources and the summed `piggybacked` vectors; updates the folds' states.

        Args:
            sources: Every source that the plan reads, and the results of `gradient_reductions`.
            summed: The sum over the peers of their `piggybacked` vectors.
            all_reduce: Sums vectors over the peers, in an extra message with the given tag, equal on all peers.
        """
        evaluation = Evaluation(TensorFlowBackend(sources, all_reduce), self.held())
        outcome = conclude(self.plan, evaluation, summed=summed)
        renewed = {fold: evaluation.renewed[fold] for fold in self.states}
        # If a peer is lost during a message of the plan, no fold has been updated, and the step can be repeated.
        with tf.control_dependencies([*outcome, *(value for values in renewed.values() for value in values)]):
            for fold, fields in self.states.items():
                for one, value in zip(fields, renewed[fold], strict=True):
                    one.variable.assign(tf.identity(value))
        return outcome

    def held(self) -> dict[Fold, tuple[tf.Tensor, ...]]:
        """The present states of the folds."""
        return {fold: tuple(one.variable.read_value() for one in fields) for fold, fields in self.states.items()}


def lower(plan: CompiledPolicies) -> Program:
    """The TensorFlow program of a plan, op by op; creates one non-trainable variable per field of a fold's state."""
    return Program(plan, {fold: _variables(fold, names=names) for fold, names in plan.state_names.items()})


def _variables(fold: Fold, *, names: Sequence[str]) -> tuple[FoldVariable, ...]:
    made = []
    for name, init, update in zip(names, fold.recurrence.init, fold.recurrence.updates, strict=True):
        start = tf.fill(update.type.shape, tf.constant(init, _DTYPES[update.type.dtype]))
        variable = tf.Variable(start, trainable=False, name=name.replace("/", "_"))
        made.append(FoldVariable(name, variable, fold.placement, fold.on_rescale, init))
    return tuple(made)


def offered(sources: Mapping[str, Any], *, name: str, dtype: DType | None) -> Any:
    """The value of a source in this step: a tensor of dtype `dtype`; for a nest (`dtype` is ``None``), its tensors."""
    # The step and the plan use one table of sources.
    if name not in sources:
        raise InternalError(f"the step did not offer the source {name!r} that its plan reads")
    return list(sources[name]) if dtype is None else tf.cast(sources[name], _DTYPES[dtype])


def _no_messages(vectors: list[tf.Tensor], tag: str) -> Sequence[tf.Tensor]:
    raise InternalError(f"the plan sends message {tag!r} of {len(vectors)} vectors before the gradient all-reduce")


@dataclass(frozen=True, eq=False)
class TensorFlowBackend:
    """Computes with tensors of this peer; see `kungfu.compiler.evaluate.Backend`."""

    sources: Mapping[str, Any]
    all_reduce: AllReduce

    def source(self, source: Source) -> Any:
        return offered(self.sources, name=source.source, dtype=None if source.type.shape == NEST else source.type.dtype)

    def given(self, name: str) -> Any | None:
        return self.sources.get(name)

    def constant(self, value: bool | int | float, dtype: DType) -> tf.Tensor:
        return tf.constant(value, _DTYPES[dtype])

    def cast(self, value: Any, dtype: DType) -> tf.Tensor:
        return tf.cast(value, _DTYPES[dtype])

    def apply(self, operation: Operation, operands: Sequence[Any], dtypes: Sequence[DType]) -> tf.Tensor:
        # A nest of gradients stays a list of tensors, each of its own dtype.
        given = [
            one if isinstance(one, list) else self.cast(one, dtype) for one, dtype in zip(operands, dtypes, strict=True)
        ]
        return _twin(operation)(*given)

    def branch(self, on: tf.Tensor, then: Callable[[], list[Any]], otherwise: Callable[[], list[Any]]) -> list[Any]:
        return list(tf.cond(on, then, otherwise))

    def packed(self, scalars: Sequence[tf.Tensor], vectors: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.concat([self.stacked(scalars, SignalType("float32")), *vectors], axis=0)

    def unpacked(self, message: tf.Tensor, layout: MessageLayout) -> list[tf.Tensor]:
        # The scalars come first, then `size` entries for each vector.
        first, size = len(layout.scalars), self.cast(self.sources["size"], "int64")
        starts = [first + index * size for index in range(len(layout.vectors))]
        return [message[i] for i in range(first)] + [message[at : at + size] for at in starts]

    def exchanged(self, message: tf.Tensor, tag: str) -> tf.Tensor:
        return self.all_reduce([message], tag)[0]

    def stacked(self, values: Sequence[tf.Tensor], of: SignalType) -> tf.Tensor:
        shape = [self.cast(self.sources["size"], "int64") for _ in of.shape]
        return tf.stack(values) if values else tf.zeros([0, *shape], _DTYPES[of.dtype])


def _twin(operation: Operation) -> Callable[..., tf.Tensor]:
    """The TensorFlow function that computes an operation, found by the function's dotted name."""
    # An operation without a TensorFlow function has a kernel in this package.
    where, *path = operation.tensorflow.split(".")
    found: Any = tf if where == "tf" else importlib.import_module("kungfu.signal.operation.tensorflow_kernels")
    for part in path:
        found = getattr(found, part)
    return found


# ---- fused -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BytecodeProgram(Program):
    """The two sides of a step as bytecode, for one native op each, so that dozens of scalars cost next to nothing.

    Cost:
        `python -m benchmarks.policy_overhead --samples 125` measures the difference, with noise scale, throughput and
        stragglers on two peers and a step of about 12 ms of processor time. On a busy backend of two cores, in four
        repetitions of 100 blocks, the policies cost 1.8 to 3.7 % of a step's processor time as two ops and 5.3 to 7.0 %
        op by op: 0.2 to 0.5 ms more per step. The limit for the cost of policies is 3 %, so op by op is too slow. XLA
        is too slow as well. The arithmetic of the same policies (127 nodes, 19 fields of state), called 200 times in a
        loop in the graph, took per call 42 to 48 microseconds of processor time as two ops, 85 to 92 under
        ``tf.function(jit_compile=True)`` and 137 to 148 op by op; the empty loop accounts for 10 of these (the same
        machine, three runs). XLA also took 2.7 s to trace and compile, against 0.2 s, and compiles again for each size
        of the cluster.
    """

    before: Bytecode
    after: Bytecode

    @tf.autograph.experimental.do_not_convert
    def piggybacked(self, sources: Mapping[str, Any]) -> tf.Tensor:
        (piggybacked,) = run_bytecode(self.before, self.variables, {**sources, **self.gradient_reductions(sources)})
        return piggybacked

    @tf.autograph.experimental.do_not_convert
    def conclude(self, sources: Mapping[str, Any], summed: tf.Tensor, all_reduce: Any) -> Outcome:
        known = {**sources, **self.gradient_reductions(sources), SUMMED: summed}
        outcome = Outcome(*run_bytecode(self.after, self.variables, known))
        size, has_fractions = tf.cast(sources["size"], tf.int64), self.plan.straggler_fractions is not None
        masks = sum(mask_of(rule.action) is not None for rule in self.plan.rules)
        return outcome._replace(
            masks=tf.reshape(outcome.masks, [masks, size]),
            fractions=tf.reshape(outcome.fractions, [int(has_fractions), size]),
        )


def fused(program: Program) -> Program:
    """The same program, with hundreds of small operations fused into two native ops.

    The order and the rounding of the operations do not change; an exponential, a logarithm or a long sum may differ in
    the last bit.

    Returns:
        The fused program. The given program if its plan has no rule, or sends extra messages, or if there is neither a
        native library nor a compiler; a step then takes a few tenths of a millisecond longer.
    """
    if not program.plan.rules or program.plan.exchanges or not native.is_available():
        return program
    return BytecodeProgram(program.plan, program.states, before_sync(program.plan), after_sync(program.plan))


def run_bytecode(bytecode: Bytecode, variables: Sequence[FoldVariable], known: Mapping[str, Any]) -> list[tf.Tensor]:
    """Runs bytecode on the states of all folds and the step's values by name; returns the vectors of results."""
    values = [offered(known, name=name, dtype=dtype) for name, dtype in bytecode.inputs.items()]
    states = [native.handle_of(variables[index].variable) for index in bytecode.states]
    dtypes = [tf.as_dtype(one) for one in bytecode.results]
    return list(native.load().ops.kungfu_evaluate(states, values, Rs=dtypes, bytecode=bytecode.text))
