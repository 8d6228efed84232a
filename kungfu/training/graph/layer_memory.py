"""Layers with a memory: variables in which a layer of the program stores statistics of the data it has seen.

Each peer sees different samples, so the values of such a variable differ between peers, and only the program knows how
to combine them: a count is the sum of the peers' counts, a queue of keys belongs to one peer. The program declares the
combination with ``add_weight(aggregation=...)``, or in ``attach(combine=...)`` for a layer that cannot be edited:

- "sum": in each step, the increments of all peers to the variable are added up, by a message of the step.
  The variable is equal on all peers after every step, so it is a part of the shared state.
- "mean": local between barriers, which assign the mean over the peers, as for the statistics of Keras' layers.
- "only_first_replica": local between barriers, which assign rank 0's value.

A variable without a declaration is refused if the program assigns it a value that depends on this peer's samples. Any
other variable, such as a count of steps, is equal on all peers anyway.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import attribute_of, is_made_by_keras, layers_with_statistics
from kungfu.training.graph.program_variables import line_of
from kungfu.training.graph.tracing.sample_flow import SampleFlow
from kungfu.training.graph.tracing.trace import StepTrace

LayerReduction = Literal["sum", "mean", "only_first_replica"]

_STRANGE = (
    "the step of fit assigns what follows from this peer's own samples to a variable that is no weight of the model "
    "({where}), so it would be this peer's alone. Make it a weight of a layer, in its __init__ or build():\n"
    '    self.name = self.add_weight(..., trainable=False, aggregation="sum")\n'
    "A metric belongs into model.metrics; a variable of the program's goes along with training after "
    "attach(...).register(name, variable, kind=...)"
)
_SUMMED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")  # dtypes that a message can sum


class AddedSums:
    """This peer's additions in a step to variables declared "sum"; a message of the step sums all peers' additions."""

    def __init__(self, variables: Sequence[tf.Variable] = ()) -> None:
        self.variables = list(variables)
        self._before: list[Any] = []

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Graph: surrounds the program's function; records the variables' values before the function."""
        self._before = [one.read_value() for one in self.variables]
        yield

    def outgoing(self) -> list[Any]:
        """Graph: this peer's additions to the variables in the step; resets these to their values at its start."""
        added = []
        for variable, before in zip(self.variables, self._before, strict=True):
            added.append(variable.read_value() - before)
            variable.assign(before, read_value=False)
        return added

    def conclude(self, sums: Sequence[Any]) -> None:
        """Graph: adds to each variable the sum of all peers' additions to it."""
        for variable, total in zip(self.variables, sums, strict=True):
            variable.assign_add(tf.reshape(total, variable.shape), read_value=False)


@dataclass(frozen=True)
class _Remembered:
    """A non-trainable variable of a layer."""

    layer: Any
    variable: Any
    reduction: LayerReduction | None
    is_of_keras: bool

    @property
    def value(self) -> tf.Variable:
        return self.variable if isinstance(self.variable, tf.Variable) else self.variable.value


@dataclass
class LayerMemory:
    """The non-trainable variables of a model's layers, with the program's declarations of how peers combine them."""

    remembered: Sequence[_Remembered] = ()  # in Keras' order
    sums: AddedSums = field(default_factory=AddedSums)  # empty in a program that runs alone
    is_shared: bool = False  # True in a job, in which each peer sees different samples
    # The ids of the handles of variables that are replicated with the training state, or combined over the peers;
    # ``None`` if the program may keep local variables.
    known: set[int] | None = None

    @classmethod
    def of(cls, model: Any, combine: Mapping[str, Any]) -> LayerMemory:
        """Creates the memory of a built model; ``combine``: declared combinations by the end of the variable's path,
        layer/name. ``UsageError`` if a name matches no variable, or a declaration is unknown or does not fit."""
        found = [*{id(variable): (layer, variable) for layer, variable in layers_with_statistics(model)}.values()]
        _refuse_names(combine, [variable for _, variable in found])
        remembered = []
        for layer, variable in found:
            is_of_keras = is_made_by_keras(layer, variable)
            reduction = next((one for name, one in combine.items() if is_named(variable, name)), None)
            said = None if is_of_keras else _said(variable)
            remembered.append(_Remembered(layer, variable, reduction or said, is_of_keras))
            _refuse_reduction(remembered[-1])
        return cls(remembered)

    def share(self, trace: StepTrace, known: Iterable[Any] | None = None) -> None:
        """Prepares the memory for a job, before its step is traced. ``known``: the variables of the model and of its
        metrics, if the program has no other variables that may depend on samples; else ``None``."""
        self.is_shared, self.sums = True, AddedSums([one.value for one in self.remembered if one.reduction == "sum"])
        self.known = None if known is None else {id(one.value.handle) for one in known}
        if self.sums.variables:
            trace.around.append(self.sums.traced)
        trace.undone += self.undone

    def knows(self, variables: Iterable[tf.Variable]) -> None:
        """Adds variables that are replicated with the training state to the ``known`` variables of `share`."""
        if self.known is not None:
            self.known |= {id(one.handle) for one in variables}

    @property
    def reductions(self) -> dict[int, LayerReduction]:
        """The combinations that the program declares for variables, by the ``id`` of Keras' variable."""
        return {id(one.variable): one.reduction for one in self.remembered if one.reduction is not None}

    @property
    def described(self) -> list[str]:
        """The declared combinations as texts, each with the index of its variable; equal on all peers."""
        return [f"{one.reduction} of variable {index}" for index, one in enumerate(self.remembered) if one.reduction]

    @property
    def undone(self) -> list[Any]:
        """The handles of variables that a failed step must restore, since the step is repeated."""
        return [one.value.handle for one in self.remembered if one.reduction in ("sum", "only_first_replica")]

    def assigned_alike(self, trace: StepTrace, *, equal: Collection[int]) -> set[int]:
        """Tracing: ids of the handles of variables to which the step assigns equal values on all peers.

        Args:
            trace: The last trace of the step's function.
            equal: The ids of the handles of variables that are equal on all peers, including some in this memory.

        Raises:
            UsageError: A variable without a declaration depends on this peer's samples; or a "sum" variable is changed
                after the message that carries its additions.
        """
        unsaid = [one for one in self.remembered if one.reduction is None and not one.is_of_keras]
        known = {*equal, *(self.known or ())}
        strange = [] if self.known is None else [one for one in trace.handles if id(one) not in known]
        if not self.is_shared or trace.graph is None or not (unsaid or self.sums.variables or strange):
            return set()
        own = {id(one.value.handle) for one in self.remembered}
        flow = SampleFlow(trace.graph, trace.batch, agreed=trace.means, equal={*equal} - own)
        self._refuse_late(flow, trace.ended_at)
        for one in strange:
            if id(one) in flow.written:
                raise UsageError(_STRANGE.format(where=line_of(flow.written[id(one)])))
        wrong = [one for one in unsaid if id(one.value.handle) in flow.written]
        if wrong:
            raise UsageError(_unsaid(wrong, flow))
        return {id(one.value.handle) for one in unsaid}

    def _refuse_late(self, flow: SampleFlow, ended_at: int | None) -> None:
        for one in self.remembered:
            if one.reduction == "sum" and ended_at is not None and flow.last_written(one.value.handle) >= ended_at:
                raise UsageError(
                    f"the step adds to {one.variable.path!r} of the layer {one.layer.name!r} after training.average(), "
                    "on whose message travels what each peer adds: call the layer before training.average()"
                )


# ---- declarations --------------------------------------------------------------------------------------------------


def _said(variable: Any) -> LayerReduction | None:
    """The declaration in ``aggregation``; ``None`` for Keras' default value, which was "mean" in earlier versions."""
    said = getattr(variable, "aggregation", None)
    default = inspect.signature(keras.layers.Layer.add_weight).parameters["aggregation"].default
    return None if said in (None, "none", default) else said


def is_named(variable: Any, name: str) -> bool:
    """True if the name is the end of the variable's path, for example layer/variable."""
    return f"/{variable.path}".endswith(f"/{name}")


def _refuse_names(combine: Mapping[str, Any], variables: Sequence[Any]) -> None:
    for name, reduction in combine.items():
        if reduction not in get_args(LayerReduction):
            raise UsageError(
                f"combine={{{name!r}: {reduction!r}}}: of a layer's variable it must be one of "
                f"{', '.join(map(repr, get_args(LayerReduction)))}"
            )
        if not any(is_named(one, name) for one in variables):
            raise UsageError(
                f"combine= names {name!r}, which is no variable that a layer keeps as not trainable: they are "
                f"{', '.join(one.path for one in variables) or 'none'}"
            )


def _refuse_reduction(one: _Remembered) -> None:
    dtype = tf.as_dtype(one.variable.dtype)
    what = f"the variable {one.variable.path!r} has the reduction {one.reduction!r}"
    if one.reduction == "mean" and not dtype.is_floating:
        raise UsageError(f"{what} and is of {dtype.name}, which has no exact mean: say 'sum' or 'only_first_replica'")
    if one.reduction == "sum" and dtype.name not in _SUMMED:
        raise UsageError(f"{what} and is of {dtype.name}: peers can add up {', '.join(_SUMMED)}")


def _unsaid(unsaid: Sequence[_Remembered], flow: SampleFlow) -> str:
    """The error message for variables without a declaration; it suggests the line of code that declares them."""
    first = unsaid[0]
    where = line_of(flow.written[id(first.value.handle)])
    names = ", ".join(f'"{"/".join(one.variable.path.split("/")[-2:])}": "sum"' for one in unsaid)
    attribute = attribute_of(first.layer, first.variable) or "variable"
    return (
        f"{type(first.layer).__name__} assigns to its variable {first.variable.path!r} what follows from this peer's "
        f"own samples ({where or 'in its call'}), so it would have another value on each peer, and only the "
        "program knows which one is the job's. Say it where the variable is made:\n"
        f'    self.{attribute} = self.add_weight(..., trainable=False, aggregation="sum")\n'
        f"or, for code that cannot be edited, in attach():\n"
        f"    attach(..., combine={{{names}}})\n"
        '"sum" adds up what the peers add, "mean" is the mean of their values, "only_first_replica" is rank 0\'s value'
    )
