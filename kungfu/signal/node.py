"""The nodes of the dataflow graph of a policy.

A `Source` is a value that a step offers, a `Map` is a pure function, a `Collective` combines the values of all peers,
and a `Fold` (in another file) carries state from step to step. Besides these four kinds, `Constant` and `Placeholder`
are the leaves that maps and folds need. A node is immutable, typed at creation, and records the user's line that
created it.

A node is *agreed* if its value is equal on all peers, else *local*. A collective is agreed, and a source declares its
placement. Any other node is agreed if all its inputs are agreed. A node is known *before* the gradient all-reduce if
the node is no collective and all its inputs are known before the all-reduce.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NoReturn, Protocol, TypeVar

import numpy as np

from kungfu.errors import PolicyError
from kungfu.signal.fold_methods import FoldMethods
from kungfu.signal.operation import NEST, VOCABULARY, Operation, SignalType
from kungfu.signal.source_location import location_of_caller
from kungfu.signal.sources import GATE_SOURCES, SOURCES, Known, Placement, SourceKind

OnRescale = Literal["keep", "reset", "convert"]
Reduction = Literal["sum", "mean", "gather", "carry"]
S = TypeVar("S", bound="Signal")


class Condition(Protocol):
    """An alternative to a bool signal in `Signal.hold`: a trigger, which has a gate and a predicate."""

    @property
    def gate(self) -> Signal: ...

    @property
    def predicate(self) -> Signal: ...


def _unary(operation: str) -> Callable[[Signal], Map]:
    return lambda self: operate(operation, self)


def _binary(operation: str) -> Callable[[Signal, object], Map]:
    return lambda self, other: operate(operation, self, other)


def _reflected(operation: str) -> Callable[[Signal, object], Map]:
    """An operator with the signal as second operand; the first operand is a Python number."""
    return lambda self, other: operate(operation, other, self)


@dataclass(frozen=True, eq=False, repr=False)
class Signal(FoldMethods, abc.ABC):
    """A value that a policy computes with: a typed, immutable node of the dataflow graph."""

    name: str = field(default="", kw_only=True)
    monitor: str = field(default="", kw_only=True)  # the monitor that created it, if any
    origin: str = field(default_factory=location_of_caller, kw_only=True)

    def __post_init__(self) -> None:
        # Computed in the order of creation, so that the recursion stays shallow.
        _ = self.type, self.placement, self.known, self.exact

    @property
    @abc.abstractmethod
    def type(self) -> SignalType:
        """The dtype and shape of this signal."""

    @property
    def inputs(self) -> tuple[Signal, ...]:
        """The inputs of this node."""
        return ()

    @cached_property
    def placement(self) -> Placement:
        """The placement: "local" if each peer has its own value, "agreed" if all peers have the same."""
        return "local" if any(one.placement == "local" for one in self.inputs) else "agreed"

    @cached_property
    def known(self) -> Known:
        """The side of the gradient all-reduce on which this signal is known: "before" or "after"."""
        return "after" if any(one.known == "after" for one in self.inputs) else "before"

    @cached_property
    def exact(self) -> bool:
        """True if this signal is the same on every peer to the last bit; see `kungfu.signal.gate`."""
        return False

    def named(self: S, name: str) -> S:
        """This signal under a name, which `explain`, the log and the status line show."""
        return replace(self, name=name)

    def __bool__(self) -> bool:
        raise PolicyError(
            f"a Python `if`, `and`, `or` or `not` on {self!r}: its value is not known until the graph runs; "
            "write kf.ops.where(condition, a, b) to choose, & | ~ for logic, and .when(condition) on a trigger"
        )

    def __iter__(self) -> NoReturn:
        if self.type.shape == NEST:
            raise PolicyError(
                f"a Python `for` over {self!r}: the gradients are known as a whole only; reduce them to a number, as "
                "in kf.ops.norm_squared(training.grads)"
            )
        raise PolicyError(
            f"a Python `for` over {self!r}: its entries are not known until the graph runs; compute with the whole "
            "vector, reduce it, as in kf.ops.sum(x), or take one entry, as in x[0]"
        )

    def __float__(self) -> float:
        raise PolicyError(
            f"a Python number was requested of {self!r}: its value is not known until the graph runs; compute with "
            "signals and kf.ops, or take it to Python with kf.control.every(n).call(fn, signal)"
        )

    def __int__(self) -> int:
        return int(float(self))

    __index__ = __int__

    def __repr__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"<{self.placement} {self.type} signal{called} from {self.origin}>"

    # ---- Python's operators: each makes a map of the operation by that name ----------------------------------------

    __array_ufunc__ = None  # NumPy's numbers defer to the operators of signals
    __add__ = _binary("add")
    __radd__ = _reflected("add")
    __sub__ = _binary("subtract")
    __rsub__ = _reflected("subtract")
    __mul__ = _binary("multiply")
    __rmul__ = _reflected("multiply")
    __truediv__ = _binary("divide")
    __rtruediv__ = _reflected("divide")
    __floordiv__ = _binary("floor_divide")
    __rfloordiv__ = _reflected("floor_divide")
    __mod__ = _binary("modulo")
    __rmod__ = _reflected("modulo")
    __pow__ = _binary("power")
    __rpow__ = _reflected("power")
    __and__ = _binary("and")
    __rand__ = _reflected("and")
    __or__ = _binary("or")
    __ror__ = _reflected("or")
    __lt__ = _binary("less")
    __le__ = _binary("less_equal")
    __gt__ = _binary("greater")
    __ge__ = _binary("greater_equal")
    __getitem__ = _binary("take")
    __neg__ = _unary("negative")
    __abs__ = _unary("abs")
    __invert__ = _unary("not")
    __eq__ = _binary("equal")  # type: ignore[assignment]  # a comparison of signals is a signal
    __ne__ = _binary("not_equal")  # type: ignore[assignment]  # a comparison of signals is a signal
    __hash__ = object.__hash__  # identity; the compiler shares equal nodes


@dataclass(frozen=True, eq=False, repr=False)
class Constant(Signal):
    """A number or truth value that is the same in every step: a Python int as int64, float as float32, or bool."""

    value: bool | int | float

    @cached_property
    def type(self) -> SignalType:
        if isinstance(self.value, bool):
            return SignalType("bool")
        return SignalType("int64" if isinstance(self.value, int) else "float32")

    @cached_property
    def exact(self) -> bool:
        return self.type.dtype != "float32"


@dataclass(frozen=True, eq=False, repr=False)
class Source(Signal):
    """A value that a step or the user's program offers.

    Attributes:
        source: The name; for a source of a step, the key in `kungfu.signal.SOURCES`.
        owner: The job whose policy uses the source.
        declared: The kind of a source of the user's program, as declared by a policy.
    """

    source: str
    owner: object = None
    declared: SourceKind | None = None

    @cached_property
    def kind(self) -> SourceKind:
        """The kind of the source: its meaning, unit and provider."""
        return SOURCES[self.source] if self.declared is None else self.declared

    @property
    def written(self) -> str:
        """The source as written in a policy, for example ``training.size``."""
        if self.declared is None or self.declared.given_by == "average":
            return f"training.{self.source}"
        return f'training.{"fed" if self.declared.given_by == "feed" else "published"}("{self.source}")'

    @cached_property
    def type(self) -> SignalType:
        return self.kind.type

    @cached_property
    def placement(self) -> Placement:
        return self.kind.placement

    @cached_property
    def known(self) -> Known:
        return self.kind.known

    @cached_property
    def exact(self) -> bool:
        return self.source in GATE_SOURCES or self.kind.given_by == "average"


@dataclass(frozen=True, eq=False, repr=False)
class Map(Signal):
    """A signal computed from other signals by a pure function: an operation of the vocabulary."""

    operation: Operation
    operands: tuple[Signal, ...]

    @cached_property
    def type(self) -> SignalType:
        return self.operation.typing(tuple(one.type for one in self.operands)).result

    @cached_property
    def exact(self) -> bool:
        return self.type.dtype != "float32" and all(one.exact for one in self.operands)

    @property
    def inputs(self) -> tuple[Signal, ...]:
        return self.operands


@dataclass(frozen=True, eq=False, repr=False)
class Collective(Signal):
    """A message that combines the peers' values into one, equal on all peers: a sum, a mean, a vector with an entry
    per peer, or a "carry". A carry is a sum to which only rank 0 contributes, 1 or 0: an exact truth value."""

    reduction: Reduction
    operand: Signal

    @cached_property
    def type(self) -> SignalType:
        if self.reduction == "carry":
            return SignalType("bool")
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

    @cached_property
    def exact(self) -> bool:
        return self.reduction == "carry"


@dataclass(frozen=True, eq=False, repr=False)
class Placeholder(Signal):
    """Stands for a field of the state of a fold, or for an input, inside the update of the fold."""

    kind: Literal["state", "input"]
    index: int
    of: SignalType

    @property
    def type(self) -> SignalType:
        return self.of


def as_signal(value: object) -> Signal:
    """Converts the value to a signal; numbers and booleans become constants; raises `PolicyError` for anything else."""
    if isinstance(value, Signal):
        return value
    if isinstance(value, (bool, np.bool_)):
        return Constant(bool(value))
    if isinstance(value, (int, np.integer)):
        whole = int(value)
        if not -(2**63) <= whole < 2**63:
            raise PolicyError(
                f"{whole} does not fit: whole numbers of a policy are int64, from -2**63 to 2**63 - 1; write it as a "
                "float, as in 1e20, where its digits do not matter"
            )
        return Constant(whole)
    if isinstance(value, (float, np.floating)):
        return Constant(float(value))
    raise PolicyError(f"{value!r} is a {type(value).__name__}; a policy computes with signals and Python numbers only")


def operate(name: str, *operands: object) -> Map:
    """The node that applies the named operation to these signals or numbers."""
    return Map(VOCABULARY[name], tuple(as_signal(one) for one in operands))


def where(condition: Signal | bool, then: Signal | float, otherwise: Signal | float) -> Map:
    """`then` where the condition is true, else `otherwise`; both are computed."""
    return operate("where", condition, then, otherwise)


def topological(roots: Iterable[Signal], *, leaves: frozenset[Signal] = frozenset()) -> tuple[Signal, ...]:
    """All nodes reachable from the roots, each once and after its inputs."""
    done: dict[Signal, None] = {}
    stack = [(root, False) for root in reversed(tuple(roots))]
    while stack:
        node, ready = stack.pop()
        # Its inputs are done, or it is a leaf.
        if ready or node in leaves:
            done[node] = None
        # First visit: the node is visited again after its inputs. An explicit stack, since graphs may be deep.
        elif node not in done:
            stack.append((node, True))
            stack.extend((one, False) for one in reversed(node.inputs) if one not in done)
    return tuple(done)
