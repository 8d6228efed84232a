"""Evaluation of a plan, shared by all interpreters; a backend defines the values and their computation.

The values of a backend are TensorFlow tensors, NumPy arrays or registers of bytecode. The evaluation runs segments in
order, updates folds, packs and unpacks messages, and collects the outcome, so that the interpreters cannot differ in
these respects.

A step is evaluated in two halves with separate values: `prepare`, before the gradient all-reduce, returns the floats
that are piggybacked on that message, and `conclude`, after it, returns the outcome. A node that both halves need is
computed in both, with equal results, since its inputs are equal. Only `conclude` updates the states of folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import inf, nan
from typing import Any, Protocol

from kungfu.compiler.compiled_policies import CompiledPolicies, GradientReduction, MessageLayout, Outcome, Segment
from kungfu.control.action import mask_of, target_of
from kungfu.errors import InternalError
from kungfu.signal import Collective, Constant, Fold, Map, Placeholder, Signal, Source, topological
from kungfu.signal.operation import SCALAR, VECTOR, VOCABULARY, DType, Operation, SignalType

Value = Any  # a tensor, or one array per peer
Branch = Callable[[], list[Value]]
_SIZE, _RANK = Source("size"), Source("rank")
_NOTHING: Mapping[DType, bool | int | float] = {"bool": False, "int64": 0, "float32": nan}


class Backend(Protocol):
    """Computes values: with TensorFlow in a step, with NumPy for a whole cluster at once, or by writing bytecode."""

    def source(self, source: Source) -> Value: ...

    def given(self, name: str) -> Value | None: ...

    def constant(self, value: bool | int | float, dtype: DType) -> Value: ...

    def apply(self, operation: Operation, operands: Sequence[Value], dtypes: Sequence[DType]) -> Value: ...

    def cast(self, value: Value, dtype: DType) -> Value: ...

    def branch(self, on: Value, then: Branch, otherwise: Branch) -> list[Value]: ...

    def packed(self, scalars: Sequence[Value], vectors: Sequence[Value]) -> Value: ...

    def unpacked(self, message: Value, layout: MessageLayout) -> list[Value]: ...

    def exchanged(self, message: Value, tag: str) -> Value: ...

    def stacked(self, values: Sequence[Value], of: SignalType) -> Value: ...


@dataclass(frozen=True)
class Evaluation:
    """One half of a step: the values of the evaluated nodes, and the fields of each fold's state before the step.

    ``renewed`` contains the fields of the state after the step, for each evaluated fold."""

    backend: Backend
    states: Mapping[Fold, tuple[Value, ...]]
    values: dict[Signal, Value] = field(default_factory=dict)
    renewed: dict[Fold, tuple[Value, ...]] = field(default_factory=dict)


def reduce_gradients(one: GradientReduction, evaluation: Evaluation) -> Value:
    """The value of a gradient reduction in this step; minus infinity if the step does not compute the reduction."""
    backend = evaluation.backend

    def then() -> list[Value]:
        values = [_value(operand, evaluation) for operand in one.node.operands]
        return [backend.cast(_mapped(one.node, values, backend=backend), "float32")]

    if not one.gates:
        return then()[0]
    # Steps in which no gate is on skip the pass over the gradients.
    return backend.branch(is_computed(one, evaluation), then, lambda: [backend.constant(-inf, "float32")])[0]


def is_computed(one: GradientReduction, evaluation: Evaluation) -> Value:
    """True if this step computes a reduction of the gradients."""
    if not one.gates:
        return evaluation.backend.constant(True, "bool")
    evaluate_nodes(topological(one.gates), evaluation)
    return _any([evaluation.values[gate] for gate in one.gates], evaluation.backend)


def prepare(plan: CompiledPolicies, evaluation: Evaluation) -> Value:
    """The floats that this step adds to the gradient all-reduce."""
    for fold in plan.folds:
        # A fold that returns its value before the step is known before its inputs.
        if fold.recurrence.reads == "old":
            evaluation.values[fold] = _held(fold, evaluation)
    _run(plan.before, evaluation)
    return _packed(plan.piggybacked, evaluation)


def conclude(plan: CompiledPolicies, evaluation: Evaluation, *, summed: Value) -> Outcome:
    """Evaluates everything after the gradient all-reduce, given the sum of the peers' piggybacked values."""
    _unpack(plan.piggybacked, summed, evaluation)
    _run(plan.after, evaluation)
    return _outcome(plan, evaluation)


def evaluate_nodes(nodes: Iterable[Signal], evaluation: Evaluation) -> Mapping[Signal, Value]:
    """The values of nodes, each evaluated after its inputs."""
    for node in nodes:
        evaluation.values[node] = _value(node, evaluation)
    return evaluation.values


def _run(segments: Iterable[Segment], evaluation: Evaluation) -> None:
    for index, segment in enumerate(segments):
        run = _run_gated if segment.gates else _run_open
        run(segment, evaluation, tag=f"message_{index}")


def _run_open(segment: Segment, evaluation: Evaluation, *, tag: str) -> None:
    evaluate_nodes(segment.nodes, evaluation)
    if segment.message:
        summed = evaluation.backend.exchanged(_packed(segment.message, evaluation), tag)
        _unpack(segment.message, summed, evaluation)


def _run_gated(segment: Segment, evaluation: Evaluation, *, tag: str) -> None:
    """Evaluates a segment if one of its gates is on; otherwise its folds keep their states."""
    backend = evaluation.backend

    def then() -> list[Value]:
        # Values stay inside the branch, except for its results.
        inside = replace(evaluation, values=dict(evaluation.values), renewed={})
        _run_open(segment, inside, tag=tag)
        states = [state for fold in segment.folds for state in inside.renewed[fold]]
        return [inside.values[one] for one in segment.outputs] + states

    def otherwise() -> list[Value]:
        # Folds keep their states; no node reads the other outputs.
        states = [state for fold in segment.folds for state in evaluation.states[fold]]
        held = (
            _held(one, evaluation) if isinstance(one, Fold) else _blank(one.type, backend) for one in segment.outputs
        )
        return [*held, *states]

    on = _any([evaluation.values[gate] for gate in segment.gates], backend)
    results = iter(backend.branch(on, then, otherwise))
    evaluation.values.update({one: next(results) for one in segment.outputs})
    evaluation.renewed.update({fold: tuple(next(results) for _ in fold.recurrence.init) for fold in segment.folds})


def _held(fold: Fold, evaluation: Evaluation) -> Value:
    """The value of a fold in a step in which the fold does not run, or has not run yet."""
    seen = tuple(evaluation.values.get(one) for one in fold.observed)
    return _inside(fold.recurrence.output, state=evaluation.states[fold], seen=seen, backend=evaluation.backend)


def _value(node: Signal, evaluation: Evaluation) -> Value:
    backend = evaluation.backend
    if isinstance(node, Source):
        return backend.source(node)
    if isinstance(node, Constant):
        return backend.constant(node.value, node.type.dtype)
    if isinstance(node, Map):
        name = GradientReduction.name_of(node)
        given = backend.given(name) if name else None
        # The reduction was computed earlier in the step, or recorded.
        if given is not None:
            return backend.cast(given, node.type.dtype)
        return _mapped(node, [evaluation.values[one] for one in node.operands], backend=backend)
    if isinstance(node, Fold):
        return _folded(node, evaluation)
    raise InternalError(f"{node!r} stands in a segment, and only maps, folds and leaves can")


def _mapped(node: Map, operands: Sequence[Value], *, backend: Backend) -> Value:
    typing = node.operation.typing(tuple(one.type for one in node.operands))
    return backend.apply(node.operation, operands, typing.operands)


def _folded(fold: Fold, evaluation: Evaluation) -> Value:
    """Runs a fold once; its state is updated only if every input is finite."""
    backend = evaluation.backend
    seen = tuple(evaluation.values[one] for one in fold.observed)
    old = evaluation.states[fold]
    new = tuple(_inside(one, state=old, seen=seen, backend=backend) for one in fold.recurrence.updates)
    finite = [
        _all_finite(value, one.type, backend)
        for one, value in zip(fold.observed, seen, strict=True)
        if one.type.dtype == "float32"
    ]
    # A NaN in an average would stay there for ever: the fold ignores inputs that are not finite.
    if finite:
        usable = reduce(partial(_apply, backend, "and"), finite)
        dtypes = [one.type.dtype for one in fold.recurrence.updates]
        new = tuple(
            _apply(backend, "where", usable, moved, kept, of=dtype)
            for moved, kept, dtype in zip(new, old, dtypes, strict=True)
        )
    evaluation.renewed[fold] = new
    if fold.recurrence.reads == "old":
        return _held(fold, evaluation)
    return _inside(fold.recurrence.output, state=new, seen=seen, backend=backend)


def _inside(result: Signal, *, state: Sequence[Value], seen: Sequence[Value], backend: Backend) -> Value:
    """The value of a node inside a fold, given the values of the fold's state and inputs."""
    values: dict[Signal, Value] = {}
    for node in topological((result,)):
        if isinstance(node, Placeholder):
            values[node] = state[node.index] if node.kind == "state" else seen[node.index]
        elif isinstance(node, Map):
            values[node] = _mapped(node, [values[one] for one in node.operands], backend=backend)
        elif isinstance(node, Constant):
            values[node] = backend.constant(node.value, node.type.dtype)
    return values[result]


def _all_finite(value: Value, type: SignalType, backend: Backend) -> Value:
    each = _apply(backend, "is_finite", value, of="float32")
    return each if type.shape == SCALAR else _apply(backend, "all", each)


def _blank(type: SignalType, backend: Backend) -> Value:
    """A placeholder that no node reads: both sides of a branch must return values of the same types and shapes."""
    nothing = backend.constant(_NOTHING[type.dtype], type.dtype)
    return _filled(nothing, type, backend) if type.shape else nothing


def _filled(value: Value, type: SignalType, backend: Backend) -> Value:
    (length,) = type.shape
    entries = backend.source(_SIZE) if length == "size" else backend.constant(int(length), "int64")
    return backend.apply(VOCABULARY["fill"], (value, entries), (type.dtype, "int64"))


def _scattered(value: Value, backend: Backend) -> Value:
    """A peer's share of a gather: a vector of zeros except for the peer's entry. The vector is not the product of the
    value and a vector of zeros and a one: NaN times 0 is NaN, and would spoil the sum over the peers."""
    zeros = _filled(backend.constant(0.0, "float32"), SignalType("float32", VECTOR), backend)
    operands = (zeros, backend.source(_RANK), value)
    return backend.apply(VOCABULARY["scatter"], operands, ("float32", "int64", "float32"))


def _any(values: Sequence[Value], backend: Backend) -> Value:
    return reduce(partial(_apply, backend, "or"), values)


def _apply(backend: Backend, name: str, *operands: Value, of: DType = "bool") -> Value:
    """Applies the operation `name` to operands of dtype `of`; of three operands, the first is a bool condition."""
    dtypes: tuple[DType, ...] = ("bool", of, of)
    return backend.apply(VOCABULARY[name], operands, dtypes[-len(operands) :])


def _packed(layout: MessageLayout, evaluation: Evaluation) -> Value:
    """This peer's floats for one message."""
    backend = evaluation.backend
    scalars = [_as_float(one.operand, evaluation) for one in layout.scalars]
    # A gather is a sum of vectors in which each peer fills its own entry.
    vectors = [
        _scattered(_as_float(one.operand, evaluation), backend)
        if one.reduction == "gather"
        else _as_float(one.operand, evaluation)
        for one in layout.vectors
    ]
    return backend.packed(scalars, vectors)


def _unpack(layout: MessageLayout, summed: Value, evaluation: Evaluation) -> None:
    backend = evaluation.backend
    for one, value in zip(layout.collectives, backend.unpacked(summed, layout), strict=True):
        evaluation.values[one] = _received(one, value, backend=backend)


def _received(collective: Collective, value: Value, *, backend: Backend) -> Value:
    """The result of a collective, computed from the sum over the peers."""
    if collective.reduction == "mean":
        peers = backend.cast(backend.source(_SIZE), "float32")
        return _apply(backend, "divide", value, peers, of="float32")
    # A truth value of rank 0 is sent as 1 or 0: sums of these are exact in any order, and rounding never reaches 0.5.
    if collective.reduction == "carry":
        return _apply(backend, "greater", value, backend.constant(0.5, "float32"), of="float32")
    return value


def _as_float(node: Signal, evaluation: Evaluation) -> Value:
    return evaluation.backend.cast(evaluation.values[node], "float32")


def _outcome(plan: CompiledPolicies, evaluation: Evaluation) -> Outcome:
    backend, values = evaluation.backend, evaluation.values
    targets, masks, inputs = [], [], []
    nothing = backend.constant(nan, "float32")
    for rule in plan.rules:
        target, mask = target_of(rule.action), mask_of(rule.action)
        # In steps that do not evaluate the rule, its values may be placeholders: NaN keeps these out of the log.
        wanted = nothing if target is None else values[target]
        targets.append(_apply(backend, "where", values[rule.fires], wanted, nothing, of="float32"))
        masks += [] if mask is None else [_apply(backend, "and", values[rule.fires], values[mask])]
        inputs += [
            _apply(backend, "where", values[rule.gate], _as_float(one, evaluation), nothing, of="float32")
            for one in rule.inputs.values()
        ]
    watched = [_as_float(one, evaluation) for one in plan.watched_signals.values()]
    seen = [one for rule in plan.rules for one in rule.inputs.values()]
    # A float32 is not exact for whole numbers beyond 2**24: whole numbers are also returned separately.
    inputs_whole, watched_whole = (
        [values[one] for one in signals if one.type.dtype == "int64"]
        for signals in (seen, plan.watched_signals.values())
    )
    fired = [values[rule.fires] for rule in plan.rules]
    fractions = [] if plan.straggler_fractions is None else [values[plan.straggler_fractions]]
    return Outcome(
        backend.stacked(fired, SignalType("bool")),
        backend.stacked(targets, SignalType("float32")),
        backend.stacked(masks, SignalType("bool", VECTOR)),
        backend.stacked(inputs, SignalType("float32")),
        backend.stacked(watched, SignalType("float32")),
        backend.stacked(inputs_whole, SignalType("int64")),
        backend.stacked(watched_whole, SignalType("int64")),
        backend.stacked(fractions, SignalType("float32", VECTOR)),
    )
