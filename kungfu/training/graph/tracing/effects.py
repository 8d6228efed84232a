"""Finds a step's side effects, except those on variables; a trial run of the step must omit them.

Prints and summaries are traced inside a condition. In the trial run, each call into Python returns zeros. If the graph
contains any other op with a side effect, the step has no trial run.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.framework_internals import (
    effect_op_makers,
    function_graph,
    functions_called,
    is_eager_function,
    make_eager_function,
    python_function,
    replace_python_functions,
)
from kungfu.training.graph.variable_io import run_where

_CALLS = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
# Stateful ops that only touch variables or random numbers, check values, or call functions of the graph.
_HARMLESS = re.compile(
    r"(Resource|Random|Stateful|Rng|Kungfu|Horovod|CudnnRNN|Var)\w*|\w*Variable(Op|Shape)|Assert|If|While|Case|Timestamp"
    r"|(ParameterizedT|T)runcatedNormal|Multinomial|XlaLaunch|NonDeterministicInts|LookupTable(Find|Size)\w*"
    r"|CheckNumerics(V2)?|\w*CandidateSampler|SampleDistortedBoundingBox(V2)?"
)


@dataclass(frozen=True)
class Effects:
    """The side effects of a graph and of its functions: calls into Python, and the types of other ops with effects."""

    calls: tuple[tf.Operation, ...]
    others: tuple[str, ...]

    @property
    def gives_values(self) -> bool:
        """True if the step uses the result of a call into Python."""
        return any(call.outputs for call in self.calls)


class EffectGate:
    """Puts prints and summaries that are traced inside ``around`` under the graph condition ``is_open()``."""

    def __init__(self, is_open: Callable[[], Any]) -> None:
        self._is_open = is_open
        self.gated: list[tf.Operation] = []  # the ops inside such a condition

    @contextmanager
    def around(self) -> Iterator[None]:
        """Within the block, prints and summaries that this thread traces become conditional on ``is_open()``."""
        with ExitStack() as undo:
            for module, name in effect_op_makers():
                plain = getattr(module, name)
                setattr(module, name, self._gated(plain, threading.get_ident()))
                undo.callback(setattr, module, name, plain)
            yield

    def _gated(self, plain: Callable[..., Any], thread: int) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            # Another thread of the program, or a function that runs op by op: nothing is being traced.
            if tf.executing_eagerly() or threading.get_ident() != thread:
                return plain(*args, **kwargs)

            return run_where(self._is_open(), lambda: self.gated.append(plain(*args, **kwargs))).op

        return tf.autograph.experimental.do_not_convert(make)


def effects_of(graph: Any, *, gate: EffectGate) -> Effects:
    """The side effects of a graph, except those on variables, that remain while ``gate`` omits prints and summaries."""
    calls, others, gated = [], [], {(id(op.graph), op.name) for op in gate.gated}
    for op, in_loop in _operations(graph, in_loop=False, seen=set()):
        if op.type in _CALLS:  # zeros can replace its result
            calls.append(op)
            if in_loop and op.outputs:  # with zeros the loop might never end
                others.append(f"{op.type} in a loop")
        elif op.op_def.is_stateful and not _HARMLESS.fullmatch(op.type) and (id(op.graph), op.name) not in gated:
            others.append(op.type)
    return Effects(tuple(calls), tuple(dict.fromkeys(others)))


def _operations(graph: Any, *, in_loop: bool, seen: set[str]) -> Iterator[tuple[tf.Operation, bool]]:
    """All ops of a graph and of the functions that the graph calls; each op with True if the op runs in a loop."""
    for op in graph.get_operations():
        yield op, in_loop
        for name in functions_called(op):
            if name not in seen:
                seen.add(name)
                loops = in_loop or "While" in op.type
                yield from _operations(function_graph(graph, name), in_loop=loops, seen=seen)


@contextmanager
def answered_by_zeros(effects: Effects, *, samples: int) -> Iterator[None]:
    """Within the block, calls into Python return zeros in the known shapes; an open first dimension is ``samples``."""
    kept = {token: python_function(token) for token in {_token(call) for call in effects.calls}}
    answers = {_token(call): _answer(call, kept[_token(call)], samples=samples) for call in effects.calls}
    replace_python_functions(answers)
    try:
        yield
    finally:
        replace_python_functions({token: one for token, one in kept.items() if one is not None})


def _token(call: tf.Operation) -> str:
    return str(call.get_attr("token").decode())


def _answer(call: tf.Operation, plain: Any, *, samples: int) -> Any:
    """Creates a replacement for a called function: it accepts the same tensors or arrays, and returns zeros."""
    shapes, dtypes = [one.shape for one in call.outputs], [one.dtype for one in call.outputs]

    def zeros(*args: Any) -> Any:
        known = [_known(shape, args, samples=samples) for shape in shapes]
        return [np.zeros(shape, dtype.as_numpy_dtype) for shape, dtype in zip(known, dtypes, strict=True)] or None

    if is_eager_function(plain):
        return make_eager_function(zeros, dtypes)
    return lambda *args: zeros(*args) or []


def _known(shape: Any, args: tuple[Any, ...], *, samples: int) -> list[int]:
    if shape.rank is None:  # most such functions change values but not shapes
        return list(args[0].shape) if args else []
    first = [samples if one is None else one for one in shape[:1]]
    return [*first, *(1 if one is None else one for one in shape[1:])]
