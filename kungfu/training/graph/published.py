"""What the user's step publishes for the policies: one variable for each name that a rule uses.

A variable, and not the tensor itself, so that a value may come from a function inside the step, which TensorFlow traces
once, or from a branch. It is cleared at the beginning of each call of the step: what is not published is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from kungfu.compiler import Plan
from kungfu.errors import UsageError
from kungfu.framework_internals import is_in_xla_context
from kungfu.signal import Source
from kungfu.signal.own_sources import misuse
from kungfu.signal.source_location import location_in_frames, location_of_caller
from kungfu.training.tracing.trace import StepTrace

__all__ = ["PublishedValues", "make_published_values", "publish"]

_NOTHING: Mapping[str, Any] = {"float32": float("nan"), "int64": 0, "bool": False}


@dataclass(frozen=True)
class PublishedValues:
    """The variables by name; ``declared`` is what a policy says of each, ``policies`` which rules use it.

    ``held`` keeps what is no float from the last micro-batch of a share that had samples.
    """

    variables: Mapping[str, tf.Variable] = field(default_factory=dict)
    declared: Mapping[str, Source] = field(default_factory=dict)
    policies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    held: Mapping[str, tf.Variable] = field(default_factory=dict)

    def clear(self) -> None:
        """Graph: the step begins."""
        for name, variable in self.variables.items():
            variable.assign(tf.constant(_NOTHING[self.declared[name].type.dtype], variable.dtype))

    def publish(self, name: str, value: Any, *, where: str) -> None:
        """Graph: a value from the user's line ``where``; ``PolicyError`` for another type or shape than declared."""
        variable = self.variables[name]
        tensor = tf.convert_to_tensor(value)
        # A cast that the user did not write could lose what matters.
        if not _is_alike(tensor.dtype, variable.dtype):
            self.refuse(
                name,
                f"was given a {tensor.dtype.name}, and is declared as {variable.dtype.name}: cast it, as in "
                f"tf.cast(x, tf.{variable.dtype.name}), or declare another dtype",
                where=where,
            )
        # Only the user knows how an array becomes one number; an unknown shape shows in the step.
        if tensor.shape.rank not in (0, None):
            self.refuse(
                name,
                f"was given a tensor of shape {tensor.shape}: it takes one number; reduce it in the step, as in "
                "tf.reduce_mean(x)",
                where=where,
            )
        variable.assign(tf.cast(tf.reshape(tensor, []), variable.dtype))

    def refuse_missing(self, given: Collection[str], captured: Collection[int]) -> None:
        """Tracing, before the message: raises where a name has not been published by now.

        Args:
            given: The names that this trace of the step has published.
            captured: The ids of the handles that its graph uses: of a function that was traced earlier, only these
                tell what it publishes.
        """
        for name, variable in self.variables.items():
            # Neither the step nor a function that it calls writes it.
            if name not in given and id(variable.handle) not in captured:
                others = ", ".join(repr(one) for one in given) or "nothing"
                self.refuse(
                    name,
                    "is not called in the step before training.average(), whose message carries what the policies "
                    f"need (published there: {others}): publish it on every peer, before the gradients are averaged",
                )

    def refuse(self, name: str, what: str, *, where: str = "") -> None:
        """Raises ``PolicyError`` with the policy that declares the name, its line, and the line that is wrong."""
        raise misuse(self.declared[name], what, policy=self.policies[name][0], where=where)

    def hold(self, samples: Any, done: Any) -> None:
        """Graph: what is no float stays where a micro-batch, after ``done`` others of the share, has no samples.

        Such a micro-batch ran on another peer's sample.
        """
        for name, held in self.held.items():
            nothing = tf.constant(_NOTHING[self.declared[name].type.dtype], held.dtype)
            before = tf.where(done > 0, held.read_value(), nothing)
            held.assign(tf.where(samples > 0, self.variables[name].read_value(), before))
            self.variables[name].assign(held.read_value())

    def floats(self) -> list[Any]:
        """Graph: those that are averaged over micro-batches, in the order of ``split``."""
        return [one.read_value() for one in self.variables.values() if one.dtype.is_floating]

    def offered(self, floats: list[Any], samples: Any) -> dict[str, Any]:
        """Graph: by name what a peer with so many samples offers; ``floats`` as those of the whole share."""
        averaged = iter(floats)
        values = {
            name: next(averaged) if one.dtype.is_floating else one.read_value() for name, one in self.variables.items()
        }
        # A peer without samples ran on another's: what comes of that is not its own.
        return {
            name: tf.where(samples > 0, value, tf.constant(_NOTHING[value.dtype.name], value.dtype))
            for name, value in values.items()
        }


def make_published_values(plan: Plan) -> PublishedValues:
    """The variables of what a plan's rules use."""
    declared = plan.given_by("publish")
    variables = {
        name: tf.Variable(_NOTHING[one.type.dtype], dtype=one.type.dtype, trainable=False, name=f"kungfu/{name}")
        for name, one in declared.items()
    }
    held = {
        name: tf.Variable(one.read_value(), trainable=False, name=f"kungfu/{name}_held")
        for name, one in variables.items()
        if not one.dtype.is_floating
    }
    return PublishedValues(variables, declared, {name: plan.rules_reading(name) for name in declared}, held)


def _is_alike(given: Any, wanted: Any) -> bool:
    """Floats of any width are one kind, whole numbers another; a truth value is no number."""
    if wanted.is_bool or given.is_bool:
        return bool(given == wanted)
    return bool(given.is_floating if wanted.is_floating else given.is_integer)


def publish(published: PublishedValues, trace: StepTrace, name: str, value: Any) -> None:
    """Graph: ``training.publish(name, value)``, in the step that ``trace`` is of, or in a function that it may call."""
    if tf.executing_eagerly() and not trace.is_under_way:
        raise UsageError(
            f"training.publish({name!r}) was called outside of a function marked @training.step: there it is of no "
            "step; a number that is known between two steps goes to the policies by training.feed(name, value)"
        )
    if name not in published.variables:  # the policies of another day may use it
        trace.published[name] = None, ""
        return
    with trace.ours():
        _write(published, trace, name, value)


def _write(published: PublishedValues, trace: StepTrace, name: str, value: Any) -> None:
    # In a graph the traceback of an op tells the user's line: AutoGraph runs a copy of the code.
    is_graph = not tf.executing_eagerly()
    where = _line_of(tf.no_op()) if is_graph else location_of_caller()
    # XLA makes one op of the whole function: no variable of ours can be written in it.
    if is_graph and is_in_xla_context(tf.compat.v1.get_default_graph()):
        published.refuse(
            name,
            "was called inside a tf.function(jit_compile=True), of which XLA makes one whole: return the value from "
            "it, and publish it in the step",
            where=where,
        )
    # Of two values in one step, one would be lost.
    if trace.is_under_way and (before := trace.publish(name, where)):
        published.refuse(name, f"is called a second time in one step, after {before}: publish it once", where=where)
    published.publish(name, value, where=where)


def _line_of(operation: tf.Operation) -> str:
    """``file:line`` of the user's that made an operation, as it is written: AutoGraph runs a copy of the code."""
    return location_in_frames((one.filename, one.lineno) for one in operation.traceback)
