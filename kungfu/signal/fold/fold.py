"""The fold: its state, the dataflow that updates it, and its value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from kungfu.errors import PolicyError
from kungfu.signal.gate import every_steps
from kungfu.signal.node import Constant, Map, OnRescale, Placeholder, Signal, Source, as_signal, topological, where
from kungfu.signal.operation import NEST, VECTOR, SignalType
from kungfu.signal.sources import Known
from kungfu.signal.whole_number import is_whole_number

StateFields = tuple[Signal, ...]
Convert = Callable[[Any, Signal, Signal], Any]


@dataclass(frozen=True)
class Filled:
    """The initial value of a vector of state: `length` entries that all equal `value`."""

    length: int
    value: bool | int | float

    def __post_init__(self) -> None:
        if not is_whole_number(self.length, least=1, most=10_000):
            raise PolicyError(f"a vector of {self.length!r} entries: write a whole number from 1 to 10000")


@dataclass(frozen=True)
class Recurrence:
    """The inside of a fold, a small graph over placeholders for the state and the inputs.

    Attributes:
        label: The name of the fold if the user gave it none.
        init: The first value of each field of the state, or of all entries of a vector field.
        updates: The next value of each field.
        output: The value of the fold.
        reads: The state that the output reads: the state after the update ("new"), or the state before it ("old"),
            which is already known at the beginning of a step.
    """

    label: str
    init: tuple[bool | int | float, ...]
    updates: tuple[Signal, ...]
    output: Signal
    reads: Literal["new", "old"] = "new"


@dataclass(frozen=True, eq=False, repr=False)
class Fold(Signal):
    """A signal with memory. It runs in the steps in which its gate is on, and skips inputs that are not finite.

    Attributes:
        observed: The inputs of the update.
        recurrence: The graph of the update.
        gate: The steps in which the fold runs, a function of step and size.
        on_rescale: The effect of a rescale on the state.
    """

    observed: tuple[Signal, ...]
    recurrence: Recurrence
    gate: Signal
    on_rescale: OnRescale

    @cached_property
    def type(self) -> SignalType:
        return self.recurrence.output.type

    @cached_property
    def known(self) -> Known:
        if self.recurrence.reads == "old":
            return "before"
        return "after" if any(one.known == "after" for one in self.inputs) else "before"

    @property
    def inputs(self) -> tuple[Signal, ...]:
        return (*self.observed, self.gate)

    def sampled(self, every: int) -> Fold:
        """A copy of this fold that runs only in every n-th step, as do the nodes that only this copy needs."""
        return self.gated(every_steps(every))

    def gated(self, gate: Signal) -> Fold:
        """A copy of this fold that runs only in the steps in which ``gate``, a function of step and size, is true."""
        return replace(self, gate=gate)

    def before_step(self) -> Fold:
        """The value of this fold before the running step, known in time to travel on the gradient all-reduce.

        The fold is still updated whenever its gate is on; a reader of this value sees the update in the next step.
        In the first step, the value is that of the initial state.

        Raises:
            PolicyError: The fold converts its state on a rescale, so its value needs this step's size.
        """
        if self.on_rescale == "convert":
            raise PolicyError(
                f".before_step() of {self!r}: a fold that converts its state on a rescale has no value before the step "
                'that converts it; declare on_rescale="keep" or "reset"'
            )
        label = f"{self.recurrence.label} before the step"
        return replace(self, recurrence=replace(self.recurrence, label=label, reads="old"))


def fold(
    update: Callable[..., Any],
    init: Any,
    *inputs: object,
    output: Callable[[Any], Signal] | None = None,
    on_rescale: OnRescale | Convert = "keep",
) -> Fold:
    """A signal with memory: ``state = update(state, *inputs)`` in every step.

    In a step with a float input that is not finite, the state stays unchanged. The result is a scalar or a vector of a
    fixed length; it is agreed if all inputs are agreed.

    Args:
        update: Called once, with placeholders; returns a pure function of these, built from operations of `kf.ops`.
            Any other signal that it needs must be an input.
        init: A number, a truth value or a `Filled` vector, or a tuple of these for several fields of state, which
            `update` then receives and returns as a tuple.
        *inputs: The signals that `update` sees after the state.
        output: Computes the value from the new state; by default the value is the (first) field.
        on_rescale: "keep" the state, "reset" it to `init`, or a function ``convert(state, before, after)`` that
            converts a state for `before` peers to a state for `after` peers.

    Raises:
        PolicyError: The update changes a dtype or shape, or uses a signal that is not an input.

    Cost:
        The state; no message.

    >>> from kungfu.signal import TrainingSignals
    >>> steps_seen = fold(lambda n, step: n + 1, 0, TrainingSignals().step)
    >>> str(steps_seen.type), steps_seen.placement
    ('int64', 'agreed')
    """
    if not callable(on_rescale) and on_rescale not in ("keep", "reset"):
        raise PolicyError(
            f"fold(on_rescale={on_rescale!r}): write one of {', '.join(get_args(OnRescale)[:2])}, or a function "
            "convert(state, before, after)"
        )
    starts = _starts(init)
    observed = tuple(as_signal(one) for one in inputs)
    fields = tuple(Placeholder("state", index, type) for index, (_, type) in enumerate(starts))
    seen = tuple(Placeholder("input", index, one.type) for index, one in enumerate(observed))
    values = tuple(value for value, _ in starts)
    if callable(on_rescale):
        return _converting(on_rescale, update, (init, values, fields), (observed, seen), output)
    made = _traced(update, _as_init(fields, init), seen, fields, output)
    _check_output(made[-1], allowed=())
    return Fold(observed, Recurrence("fold", values, made[:-1], made[-1]), Constant(True), on_rescale)


def _converting(
    convert: Convert,
    update: Callable[..., Any],
    start: tuple[Any, tuple[bool | int | float, ...], StateFields],
    inputs: tuple[StateFields, StateFields],
    output: Callable[[Any], Signal] | None,
) -> Fold:
    """A fold whose state is converted when the number of peers changes; a further field stores the last number."""
    init, values, fields = start
    observed, seen = inputs
    now = Placeholder("input", len(seen), SignalType("int64"))
    last = Placeholder("state", len(fields), SignalType("int64"))
    given = _updates(convert(_as_init(fields, init), last, now), fields=fields)
    # An initial state (0 peers) belongs to no size yet, and needs no conversion.
    changed = (last != now) & (last > 0)
    current = tuple(where(changed, new, old) for new, old in zip(given, fields, strict=True))
    # The user's update sees the converted state; the size is the last field.
    made = _traced(update, _as_init(current, init), seen, fields, output)
    _check_output(made[-1], allowed=(now,))
    recurrence = Recurrence("fold", (*values, 0), (*made[:-1], now * 1), made[-1])
    return Fold((*observed, Source("size")), recurrence, Constant(True), "convert")


def _traced(
    update: Callable[..., Any],
    state: Any,
    seen: StateFields,
    fields: StateFields,
    output: Callable[[Any], Signal] | None,
) -> StateFields:
    """The next state, one signal per field, followed by the output."""
    updates = _updates(update(state, *seen), fields=fields)
    first = state[0] if isinstance(state, tuple) else state
    result = as_signal(output(state)) if output else first
    _check_closed((*updates, result))
    return (*updates, result)


def _as_init(fields: StateFields, init: Any) -> Any:
    """The fields as a tuple if `init` is a tuple, else the only field."""
    return fields if isinstance(init, tuple) else fields[0]


def _starts(init: Any) -> list[tuple[bool | int | float, SignalType]]:
    """The first value and the type of each field."""
    starts = [_start(one, init=init) for one in (init if isinstance(init, tuple) else (init,))]
    if not starts:
        raise PolicyError(f"fold: init is {init!r}; a state must start from Python numbers or truth values")
    return starts


def _start(one: Any, *, init: Any) -> tuple[bool | int | float, SignalType]:
    constant = as_signal(one.value if isinstance(one, Filled) else one)
    if not isinstance(constant, Constant):
        raise PolicyError(f"fold: init is {init!r}; a state must start from Python numbers or truth values")
    shape = (one.length,) if isinstance(one, Filled) else ()
    return constant.value, SignalType(constant.type.dtype, shape)


def _updates(given: object, *, fields: StateFields) -> StateFields:
    """The traced next state, one signal per field; raises `PolicyError` if their number, dtype or shape differs."""
    updates = tuple(as_signal(one) for one in (given if isinstance(given, tuple) else (given,)))
    if len(updates) != len(fields):
        raise PolicyError(f"fold: update gives {len(updates)} fields of state and init has {len(fields)}; give as many")
    return tuple(_kept(one, field=field) for one, field in zip(updates, fields, strict=True))


def _kept(value: Signal, *, field: Signal) -> Signal:
    """The next value of a field, in the field's type: int64 may become float32; other changes raise `PolicyError`."""
    if value.type == field.type:
        return value
    # A whole number in a float field becomes a float; nothing else is converted silently.
    if value.type.dtype == "int64" and field.type == SignalType("float32", value.type.shape):
        return value * 1.0
    per_peer = "; a vector with one entry per peer changes its length: smooth each peer's own value, then gather it"
    raise PolicyError(
        f"fold: a state that starts as {field.type} would become {value.type}; a fold keeps its dtype and shape: "
        "start from 0.0 for a float, from 0 for a count, from Filled(n, 0.0) for a vector, and reduce to a number first"
        + (per_peer if value.type.shape == VECTOR else "")
    )


def _check_closed(results: StateFields) -> None:
    """Raises `PolicyError` if the update of a fold contains anything but maps over its state and inputs."""
    for node in topological(results):
        if not isinstance(node, (Placeholder, Constant, Map)):
            raise PolicyError(f"fold: update uses {node!r} from outside; pass it as an input: fold(update, init, it)")
    if results[-1].type.shape in (NEST, VECTOR):
        raise PolicyError(f"fold: output is {results[-1].type}; a fold gives a scalar or a vector of a fixed length")


def _check_output(output: Signal, *, allowed: StateFields) -> None:
    # The output must be known even in steps in which the fold does not run and its inputs are not evaluated.
    inputs = [node for node in topological((output,)) if isinstance(node, Placeholder) and node.kind == "input"]
    if any(not any(node is one for one in allowed) for node in inputs):
        raise PolicyError("fold: output reads an input; it is made of the state alone, so keep the input in the state")


def labelled(made: Fold, *, label: str) -> Fold:
    """A copy of a fold with the name under which ``kungfu explain`` shows it."""
    return replace(made, recurrence=replace(made.recurrence, label=label))
