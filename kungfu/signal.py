"""Signals: the values that a policy computes with, as nodes of a dataflow graph.

Four kinds of node, and nothing else: a `Source` is what a step offers, a `Map` a pure function, a `Collective` turns
local into agreed, and a `Fold` carries state from step to step. `Constant` and `Placeholder` are the leaves that maps
and folds need. A node is immutable, typed when it is made, and remembers the user's line that made it.

A node is *agreed* when everything that it is made of is agreed, else *local*; it is known *before* the gradient
all-reduce when everything that it is made of is, and it holds no collective.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from kungfu.errors import PolicyError
from kungfu.operation import OPERATORS, SCALAR, Operation, SignalType
from kungfu.origin import origin_of_caller
from kungfu.sources import GATE_SOURCES, SOURCES, Known, Placement

__all__ = [
    "Collective",
    "Constant",
    "Fold",
    "Map",
    "OnRescale",
    "Placeholder",
    "Recurrence",
    "Signal",
    "Source",
    "TrainingSignals",
    "apply",
    "as_signal",
    "every_steps",
    "fold",
    "is_gate",
    "topological",
]

OnRescale = Literal["keep", "reset"]
Reduction = Literal["sum", "mean", "gather"]
S = TypeVar("S", bound="Signal")


class Condition(Protocol):
    """What `Signal.hold` can wait for besides a bool signal: a trigger, that is a gate and a predicate."""

    @property
    def gate(self) -> Signal: ...

    @property
    def predicate(self) -> Signal: ...


@dataclass(frozen=True, eq=False, repr=False)
class Signal(abc.ABC):
    """A value that a policy computes with: a typed, immutable node of the dataflow graph."""

    name: str = field(default="", kw_only=True)
    origin: str = field(default_factory=origin_of_caller, kw_only=True)

    __array_ufunc__ = None  # NumPy numbers leave the operators to us

    @property
    @abc.abstractmethod
    def type(self) -> SignalType:
        """The dtype and shape of this signal."""

    @property
    def inputs(self) -> tuple[Signal, ...]:
        """The nodes that this one is made of."""
        return ()

    @cached_property
    def placement(self) -> Placement:
        """Whether each peer has its own value (local), or all peers the same (agreed)."""
        return "local" if any(one.placement == "local" for one in self.inputs) else "agreed"

    @cached_property
    def known(self) -> Known:
        """Whether this signal is known before or only after the gradient all-reduce."""
        return "after" if any(one.known == "after" for one in self.inputs) else "before"

    def __post_init__(self) -> None:
        # Asked for in the order of making, so that no question ever goes deep.
        _ = self.type, self.placement, self.known

    def named(self: S, name: str) -> S:
        """This signal under a name, by which `explain`, the log and the status line speak of it."""
        return replace(self, name=name)

    # Operators: see `kungfu.operation` for the type rules.
    def __add__(self, other: object) -> Signal:
        return _operator("add", self, other)

    def __radd__(self, other: object) -> Signal:
        return _operator("add", other, self)

    def __sub__(self, other: object) -> Signal:
        return _operator("subtract", self, other)

    def __rsub__(self, other: object) -> Signal:
        return _operator("subtract", other, self)

    def __mul__(self, other: object) -> Signal:
        return _operator("multiply", self, other)

    def __rmul__(self, other: object) -> Signal:
        return _operator("multiply", other, self)

    def __truediv__(self, other: object) -> Signal:
        return _operator("divide", self, other)

    def __rtruediv__(self, other: object) -> Signal:
        return _operator("divide", other, self)

    def __floordiv__(self, other: object) -> Signal:
        return _operator("floor_divide", self, other)

    def __mod__(self, other: object) -> Signal:
        return _operator("modulo", self, other)

    def __neg__(self) -> Signal:
        return _operator("negative", self)

    def __abs__(self) -> Signal:
        return _operator("abs", self)

    def __lt__(self, other: object) -> Signal:
        return _operator("less", self, other)

    def __le__(self, other: object) -> Signal:
        return _operator("less_equal", self, other)

    def __gt__(self, other: object) -> Signal:
        return _operator("greater", self, other)

    def __ge__(self, other: object) -> Signal:
        return _operator("greater_equal", self, other)

    def __eq__(self, other: object) -> Signal:  # type: ignore[override]  # a comparison of signals is a signal
        return _operator("equal", self, other)

    def __ne__(self, other: object) -> Signal:  # type: ignore[override]  # a comparison of signals is a signal
        return _operator("not_equal", self, other)

    def __and__(self, other: object) -> Signal:
        return _operator("and", self, other)

    def __rand__(self, other: object) -> Signal:
        return _operator("and", other, self)

    def __or__(self, other: object) -> Signal:
        return _operator("or", self, other)

    def __ror__(self, other: object) -> Signal:
        return _operator("or", other, self)

    def __invert__(self) -> Signal:
        return _operator("not", self)

    __hash__ = object.__hash__  # a node is itself; equal nodes are shared by the compiler

    def __bool__(self) -> bool:
        raise PolicyError(
            f"a Python `if`, `and`, `or` or `not` on {self!r}: its value is not known until the graph runs; "
            "write kf.where(condition, a, b) to choose, & | ~ for logic, and .when(condition) on a trigger"
        )

    def __repr__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"<{self.placement} {self.type} signal{called} from {self.origin}>"

    def ema(self, decay: float, *, on_rescale: OnRescale = "keep") -> Fold:
        """The exponential moving average, corrected for its start: ``a += (d / w) (x - a)`` with ``w = (1 - d) w + d``.

        `decay` is the weight of the newest value, in (0, 1]. Gives float32, NaN until the first finite input; an
        input that is not finite is skipped. Cost: two floats of state, no message.
        """
        if not 0 < decay <= 1:
            raise PolicyError(f"ema(decay={decay!r}): the weight of the newest value must lie in (0, 1], e.g. 0.01")

        def update(state: tuple[Signal, ...], x: Signal) -> tuple[Signal, ...]:
            average, weight = state
            grown = weight * (1 - decay) + decay
            return average + (decay / grown) * (x - average), grown

        def read(state: tuple[Signal, ...]) -> Signal:
            return _operator("where", state[1] > 0, state[0], math.nan)

        return fold(update, (0.0, 0.0), self, output=read, on_rescale=on_rescale)

    def previous(self, *, on_rescale: OnRescale = "keep") -> Fold:
        """The finite value before the newest one: float32, NaN until there were two. State: two floats."""

        def update(state: tuple[Signal, ...], x: Signal) -> tuple[Signal, ...]:
            return x, state[0]

        return fold(update, (math.nan, math.nan), self, output=lambda state: state[1], on_rescale=on_rescale)

    def hold(self, *, when: Signal | Condition, on_rescale: OnRescale = "keep") -> Fold:
        """The last finite value seen while `when` (a bool signal or a trigger) was on: float32, NaN before.

        Where `when` is a function of step and size alone, this signal is computed in those steps only.
        """
        gate, predicate = _gate_and_predicate(when)

        def update(held: Signal, x: Signal, on: Signal) -> Signal:
            return _operator("where", on, x, held)

        return replace(fold(update, math.nan, self, predicate, on_rescale=on_rescale), gate=gate)


@dataclass(frozen=True, eq=False, repr=False)
class Constant(Signal):
    """A number or truth value that is the same in every step: int64, float32 or bool, as Python's int, float, bool."""

    value: bool | int | float

    @cached_property
    def type(self) -> SignalType:
        if isinstance(self.value, bool):
            return SignalType("bool")
        return SignalType("int64" if isinstance(self.value, int) else "float32")


@dataclass(frozen=True, eq=False, repr=False)
class Source(Signal):
    """What a step offers, by its name in `kungfu.sources.SOURCES`."""

    source: str

    @cached_property
    def type(self) -> SignalType:
        return SOURCES[self.source].type

    @cached_property
    def placement(self) -> Placement:
        return SOURCES[self.source].placement

    @cached_property
    def known(self) -> Known:
        return SOURCES[self.source].known


@dataclass(frozen=True, eq=False, repr=False)
class Map(Signal):
    """A pure function out of the vocabulary."""

    operation: Operation
    operands: tuple[Signal, ...]

    @cached_property
    def type(self) -> SignalType:
        return self.operation.typing(tuple(one.type for one in self.operands)).result

    @property
    def inputs(self) -> tuple[Signal, ...]:
        return self.operands


@dataclass(frozen=True, eq=False, repr=False)
class Collective(Signal):
    """A message that turns local into agreed: a sum, a mean, or a vector with one entry a peer."""

    reduction: Reduction
    operand: Signal

    @cached_property
    def type(self) -> SignalType:
        shape = ("size",) if self.reduction == "gather" else self.operand.type.shape
        return SignalType("float32", shape)

    @property
    def inputs(self) -> tuple[Signal, ...]:
        return (self.operand,)

    @cached_property
    def placement(self) -> Placement:
        return "agreed"

    @cached_property
    def known(self) -> Known:
        return "after"


@dataclass(frozen=True, eq=False, repr=False)
class Placeholder(Signal):
    """The state or an input of a fold, inside its update."""

    kind: Literal["state", "input"]
    index: int
    of: SignalType

    @property
    def type(self) -> SignalType:
        return self.of


@dataclass(frozen=True)
class Recurrence:
    """The inside of a fold: where its state starts, its next state, and what it gives, all over placeholders."""

    init: tuple[bool | int | float, ...]
    updates: tuple[Signal, ...]
    output: Signal


@dataclass(frozen=True, eq=False, repr=False)
class Fold(Signal):
    """A signal with memory. It runs in the steps in which its gate is on, and skips inputs that are not finite."""

    observed: tuple[Signal, ...]
    recurrence: Recurrence
    gate: Signal
    on_rescale: OnRescale

    @cached_property
    def type(self) -> SignalType:
        return self.recurrence.output.type

    @property
    def inputs(self) -> tuple[Signal, ...]:
        return (*self.observed, self.gate)

    def sampled(self, every: int) -> Fold:
        """This fold, run only in every so many steps; what only it needs is computed in those steps only."""
        return replace(self, gate=every_steps(every))


class TrainingSignals:
    """The sources of a step, as attributes: the `training` argument of a policy.

    >>> TrainingSignals().local_batch_size.placement
    'agreed'
    """

    def __getattr__(self, name: str) -> Source:
        if name not in SOURCES:
            raise PolicyError(f"a step offers no {name!r} to a policy; it offers {', '.join(sorted(SOURCES))}")
        return Source(name)

    def __dir__(self) -> Iterable[str]:
        return sorted(SOURCES)


def as_signal(value: object) -> Signal:
    """This signal, or the constant of this number or truth value."""
    if isinstance(value, Signal):
        return value
    if isinstance(value, (bool, np.bool_)):
        return Constant(bool(value))
    if isinstance(value, (int, np.integer)):
        return Constant(int(value))
    if isinstance(value, (float, np.floating)):
        return Constant(float(value))
    raise PolicyError(f"{value!r} is a {type(value).__name__}; a policy computes with signals and Python numbers only")


def apply(operation: Operation, *operands: object) -> Map:
    """The node of an operation on these signals or numbers."""
    return Map(operation, tuple(as_signal(one) for one in operands))


def _operator(name: str, *operands: object) -> Map:
    return apply(OPERATORS[name], *operands)


def fold(
    update: Callable[..., Any],
    init: Any,
    *inputs: object,
    output: Callable[[Any], Signal] | None = None,
    on_rescale: OnRescale = "keep",
) -> Fold:
    """A signal with memory: ``state = update(state, *inputs)`` in every step.

    `update` is called once, with placeholders, and must be a small pure dataflow of the vocabulary over them; what
    else it needs must be an input. `init` is a number or truth value, or a tuple of them for several fields of state,
    which `update` then takes and gives as a tuple. `output` makes the value out of the new state; without it, the
    (first) state is the value. An input that is not finite is skipped: the state stays. `on_rescale` says whether the
    state is kept or starts again when the cluster changes. Gives: a scalar, agreed if all inputs are. Cost: its state,
    no message.

    >>> steps_seen = fold(lambda n, step: n + 1, 0, TrainingSignals().step)
    >>> str(steps_seen.type), steps_seen.placement
    ('int64', 'agreed')
    """
    single = not isinstance(init, tuple)
    starts = tuple(as_signal(one) for one in ((init,) if single else init))
    if not starts or not all(isinstance(one, Constant) for one in starts):
        raise PolicyError(f"fold: init is {init!r}; the state must start from Python numbers or truth values")
    observed = tuple(as_signal(one) for one in inputs)
    states = tuple(Placeholder("state", index, one.type) for index, one in enumerate(starts))
    seen = tuple(Placeholder("input", index, one.type) for index, one in enumerate(observed))
    state = states[0] if single else states
    updates = _updates(update(state, *seen), states=states)
    result = as_signal(output(state)) if output else states[0]
    _closed((*updates, result))
    values = tuple(one.value for one in starts if isinstance(one, Constant))
    return Fold(observed, Recurrence(values, updates, result), Constant(True), on_rescale)


def _updates(given: object, *, states: tuple[Signal, ...]) -> tuple[Signal, ...]:
    """The traced next state, one signal a field; raises where the number, a dtype or a shape changed."""
    fields = tuple(as_signal(one) for one in (given if isinstance(given, tuple) else (given,)))
    if len(fields) != len(states):
        raise PolicyError(f"fold: update gives {len(fields)} fields of state and init has {len(states)}; give as many")
    return tuple(_kept(one, state=state) for one, state in zip(fields, states, strict=True))


def _kept(value: Signal, *, state: Signal) -> Signal:
    if value.type == state.type:
        return value
    if value.type == SignalType("int64") and state.type == SignalType("float32"):
        return value * 1.0
    raise PolicyError(
        f"fold: a state that starts as {state.type} would become {value.type}; a fold keeps its dtype and shape: "
        "start from 0.0 for a float, from 0 for a count, and reduce a vector to a number first"
    )


def _closed(results: tuple[Signal, ...]) -> None:
    """Raises where the inside of a fold holds anything but maps over its own state and inputs."""
    for node in topological(results):
        if not isinstance(node, (Placeholder, Constant, Map)):
            raise PolicyError(f"fold: update uses {node!r} from outside; pass it as an input: fold(update, init, it)")
    if results[-1].type.shape != SCALAR:
        raise PolicyError(f"fold: output is {results[-1].type}; a fold gives a scalar")


def every_steps(every: int) -> Signal:
    """The gate that is on in every so many steps: ``step % every == 0``."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise PolicyError(f"every {every!r} steps: the period must be a whole number of at least 1, e.g. 50")
    return Constant(True) if every == 1 else Source("step") % every == 0


def is_gate(signal: Signal) -> bool:
    """Whether this is a function of step and size in whole numbers, hence the same on every peer without a doubt."""
    return signal.type == SignalType("bool") and all(
        node.type.dtype != "float32"
        and (isinstance(node, (Constant, Map)) or (isinstance(node, Source) and node.source in GATE_SOURCES))
        for node in topological((signal,))
    )


def _gate_and_predicate(when: Signal | Condition) -> tuple[Signal, Signal]:
    if not isinstance(when, Signal):
        return when.gate, when.predicate
    return (when, Constant(True)) if is_gate(when) else (Constant(True), when)


def topological(roots: Iterable[Signal]) -> tuple[Signal, ...]:
    """Every node that the roots are made of, each once, after its inputs; the order is that of the making."""
    done: dict[Signal, None] = {}
    stack = [(root, False) for root in reversed(tuple(roots))]
    while stack:
        node, ready = stack.pop()
        if ready:
            done[node] = None
        elif node not in done:
            stack.append((node, True))
            stack.extend((one, False) for one in reversed(node.inputs) if one not in done)
    return tuple(done)
