"""Folds: signals with memory, whose update is itself a small dataflow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

from kungfu.errors import PolicyError
from kungfu.signal.gate import every_steps, is_gate
from kungfu.signal.node import (
    Condition,
    Constant,
    Map,
    OnRescale,
    Placeholder,
    Signal,
    apply,
    as_signal,
    topological,
)
from kungfu.signal.operation import OPERATORS, SCALAR, SignalType

__all__ = ["Fold", "Recurrence", "ema", "fold", "hold", "previous"]

Fields = tuple[Signal, ...]


@dataclass(frozen=True)
class Recurrence:
    """The inside of a fold: where its state starts, its next state, and what it gives, all over placeholders."""

    label: str
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
    (first) field is the value. In a step in which a float input is not finite, the state stays as it was. `on_rescale`
    says whether the state is kept or starts again when the cluster changes. Gives: a scalar, agreed if all inputs are.
    Cost: its state, no message. Raises `PolicyError` where the update changes a dtype or shape, or reaches outside.

    >>> from kungfu.signal import TrainingSignals
    >>> steps_seen = fold(lambda n, step: n + 1, 0, TrainingSignals().step)
    >>> str(steps_seen.type), steps_seen.placement
    ('int64', 'agreed')
    """
    if on_rescale not in get_args(OnRescale):
        raise PolicyError(f"fold(on_rescale={on_rescale!r}): write one of {', '.join(get_args(OnRescale))}")
    starts = _starts(init)
    observed = tuple(as_signal(one) for one in inputs)
    fields = tuple(Placeholder("state", index, one.type) for index, one in enumerate(starts))
    seen = tuple(Placeholder("input", index, one.type) for index, one in enumerate(observed))
    state = fields if isinstance(init, tuple) else fields[0]
    updates = _updates(update(state, *seen), fields=fields)
    result = as_signal(output(state)) if output else fields[0]
    _check_closed((*updates, result))
    recurrence = Recurrence("fold", tuple(one.value for one in starts), updates, result)
    return Fold(observed, recurrence, Constant(True), on_rescale)


def _starts(init: Any) -> tuple[Constant, ...]:
    starts = tuple(as_signal(one) for one in (init if isinstance(init, tuple) else (init,)))
    constants = tuple(one for one in starts if isinstance(one, Constant))
    if not starts or len(constants) < len(starts):
        raise PolicyError(f"fold: init is {init!r}; a state must start from Python numbers or truth values")
    return constants


def _updates(given: object, *, fields: Fields) -> Fields:
    """The traced next state, one signal a field; raises where the number, a dtype or a shape changed."""
    updates = tuple(as_signal(one) for one in (given if isinstance(given, tuple) else (given,)))
    if len(updates) != len(fields):
        raise PolicyError(f"fold: update gives {len(updates)} fields of state and init has {len(fields)}; give as many")
    return tuple(_kept(one, field=field) for one, field in zip(updates, fields, strict=True))


def _kept(value: Signal, *, field: Signal) -> Signal:
    if value.type == field.type:
        return value
    if value.type == SignalType("int64") and field.type == SignalType("float32"):
        return value * 1.0
    raise PolicyError(
        f"fold: a state that starts as {field.type} would become {value.type}; a fold keeps its dtype and shape: "
        "start from 0.0 for a float, from 0 for a count, and reduce a vector to a number first"
    )


def _check_closed(results: Fields) -> None:
    """Raises where the inside of a fold holds anything but maps over its own state and inputs."""
    for node in topological(results):
        if not isinstance(node, (Placeholder, Constant, Map)):
            raise PolicyError(f"fold: update uses {node!r} from outside; pass it as an input: fold(update, init, it)")
    if results[-1].type.shape != SCALAR:
        raise PolicyError(f"fold: output is {results[-1].type}; a fold gives a scalar")
    if any(isinstance(node, Placeholder) and node.kind == "input" for node in topological(results[-1:])):
        raise PolicyError("fold: output reads an input; it is made of the state alone, so keep the input in the state")


def _labelled(made: Fold, *, label: str) -> Fold:
    return replace(made, recurrence=replace(made.recurrence, label=label))


def ema(x: Signal, *, decay: float, on_rescale: OnRescale) -> Fold:
    """See `Signal.ema`."""
    if not 0 < decay <= 1:
        raise PolicyError(f"ema(decay={decay!r}): the weight of the newest value must lie in (0, 1], e.g. 0.01")

    def update(state: Fields, value: Signal) -> Fields:
        average, weight = state
        grown = weight * (1 - decay) + decay
        # Not a quotient of two sums: this form gives the first value back exactly.
        return average + (decay / grown) * (value - average), grown

    def read(state: Fields) -> Signal:
        return _where(state[1] > 0, state[0], math.nan)

    return _labelled(fold(update, (0.0, 0.0), x, output=read, on_rescale=on_rescale), label="ema")


def previous(x: Signal, *, on_rescale: OnRescale) -> Fold:
    """See `Signal.previous`."""

    def update(state: Fields, value: Signal) -> Fields:
        return value, state[0]

    made = fold(update, (math.nan, math.nan), x, output=lambda state: state[1], on_rescale=on_rescale)
    return _labelled(made, label="previous")


def hold(x: Signal, *, when: Signal | Condition, on_rescale: OnRescale) -> Fold:
    """See `Signal.hold`."""
    gate, predicate = _gate_and_predicate(when)

    def update(held: Signal, value: Signal, on: Signal) -> Signal:
        return _where(on, value, held)

    made = fold(update, math.nan, x, predicate, on_rescale=on_rescale)
    return replace(_labelled(made, label="hold"), gate=gate)


def _gate_and_predicate(when: Signal | Condition) -> tuple[Signal, Signal]:
    if not isinstance(when, Signal):
        return when.gate, when.predicate
    return (when, Constant(True)) if is_gate(when) else (Constant(True), when)


def _where(condition: Signal, then: Signal, otherwise: Signal | float) -> Signal:
    return apply(OPERATORS["where"], condition, then, otherwise)
