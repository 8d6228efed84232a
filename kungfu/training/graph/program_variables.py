"""The values that the user's program gives to policies: published in its step, or fed between its steps.

What is published lies in a variable for each name that a rule uses, and not in the tensor itself, so that a value may
come from a function inside the step, which TensorFlow traces once, or from a branch. It is cleared at the beginning of
each call of the step: what is not published is not known.

What is fed is held by each peer until the next message. Feeding and sending are counted, as requests for a barrier are:
the program counts what it offers, the step what a message has carried. So a number that is fed while a step runs, by
another thread say, is not lost: it rides on the next message. What the message brings is kept by a fold of the policy
(`kungfu.signal.training`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.compiler import Plan
from kungfu.errors import UsageError
from kungfu.framework_internals import is_in_xla_context
from kungfu.signal.source_location import location_in_frames, location_of_caller
from kungfu.signal.training import misuse
from kungfu.training.graph.tracing.trace import StepTrace
from kungfu.training.graph.variable_io import write_variable

_NOTHING: Mapping[str, Any] = {"float32": float("nan"), "int64": 0, "bool": False}
_LARGEST = float(np.finfo(np.float32).max)


def _nothing(dtype: Any) -> Any:
    return tf.constant(_NOTHING[dtype.name], dtype)


class PublishedValues:
    """The variables of the names that a plan's rules use; `_held` keeps what is no float from the last micro-batch
    of a share that had samples."""

    def __init__(self, plan: Plan) -> None:
        self._declared = plan.given_by("publish")
        self._policies = {name: plan.rules_reading(name)[0] for name in self._declared}
        self.variables = {
            name: tf.Variable(_NOTHING[one.type.dtype], dtype=one.type.dtype, trainable=False, name=f"kungfu/{name}")
            for name, one in self._declared.items()
        }
        self._held = {
            name: tf.Variable(one.read_value(), trainable=False, name=f"kungfu/{name}_held")
            for name, one in self.variables.items()
            if not one.dtype.is_floating
        }

    def all(self) -> list[tf.Variable]:
        """All variables that a step writes."""
        return [*self.variables.values(), *self._held.values()]

    def clear(self) -> None:
        """Graph: the step begins."""
        for variable in self.variables.values():
            variable.assign(_nothing(variable.dtype))

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
        raise misuse(self._declared[name], what, policy=self._policies[name], where=where)

    def hold(self, samples: Any, done: Any) -> None:
        """Graph: what is no float stays where a micro-batch, after ``done`` others of the share, has no samples."""
        # Such a micro-batch ran on another peer's sample.
        for name, held in self._held.items():
            before = tf.where(done > 0, held.read_value(), _nothing(held.dtype))
            held.assign(tf.where(samples > 0, self.variables[name].read_value(), before))
            self.variables[name].assign(held.read_value())

    def floats(self) -> list[Any]:
        """Graph: those that are averaged over micro-batches, in the order of ``split``."""
        return [one.read_value() for one in self.variables.values() if one.dtype.is_floating]

    def offered(self, floats: list[Any], samples: Any) -> dict[str, Any]:
        """Graph: by name what a peer with this many samples offers; ``floats`` as those of the whole share."""
        averaged = iter(floats)
        values = {
            name: next(averaged) if one.dtype.is_floating else one.read_value() for name, one in self.variables.items()
        }
        # A peer without samples ran on another's: what comes of that is not its own.
        return {name: tf.where(samples > 0, value, _nothing(value.dtype)) for name, value in values.items()}


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
    where = line_of(tf.no_op()) if is_graph else location_of_caller()
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


def line_of(operation: tf.Operation) -> str:
    """``file:line`` of the user's that made an operation, "" if none did, as written: AutoGraph runs a copy of it."""
    return location_in_frames((one.filename, one.lineno) for one in operation.traceback)


class FedValues:
    """The numbers of this peer that a plan's rules are fed, one entry per declared name."""

    def __init__(self, plan: Plan) -> None:
        self._declared = declared = plan.given_by("feed")
        self._policies = {name: plan.rules_reading(name)[0] for name in declared}
        self._names, self._unused = list(declared), set[str]()  # the latter were fed for no policy
        # Held while the step is tried out, which gives every variable back what it held.
        self.lock = threading.RLock()
        self._newest, self._counts = np.full(len(declared), np.nan, np.float32), np.zeros(len(declared), np.int64)
        self._values = tf.Variable(self._newest, trainable=False, name="kungfu/fed")
        self._offers = tf.Variable(self._counts, trainable=False, name="kungfu/fed_offers")
        self._carried = tf.Variable(self._counts, trainable=False, name="kungfu/fed_carried")

    def variables(self) -> list[tf.Variable]:
        """The variables that a step reads, if there is any name."""
        return [self._values, self._offers, self._carried] if self._names else []

    def feed(self, name: str, value: Any, *, where: str) -> None:
        """Host: a number for the next message, from the user's line ``where``; ``PolicyError`` for anything else."""
        if name not in self._declared:
            self._note_unused(name, where=where)
            return
        number = _number(value)
        # It is no number: a text, a truth value, an array.
        if number is None:
            self._refuse(name, f"was given {value!r}, a {type(value).__name__}: it takes a number", where=where)
        # A fold would skip it, and go on with the last one unsaid.
        elif not abs(number) <= _LARGEST:
            self._refuse(
                name,
                f"was given {value!r}: it takes a finite number that a float32 can hold; leave the call out while "
                "there is none, and the last one stays",
                where=where,
            )
        else:
            place = self._names.index(name)
            with self.lock:
                self._newest[place] = number
                self._counts[place] += 1
                write_variable(self._values, self._newest)  # before the count, by which a step knows of it
                write_variable(self._offers, self._counts)

    def offered(self) -> tuple[dict[str, Any], Any]:
        """Graph: by name what no message has carried yet, NaN if that is nothing; and what `carry` takes."""
        # No policy is fed: the step gets no op for it.
        if not self._names:
            return {}, None
        offers = self._offers.read_value()
        with tf.control_dependencies([offers]):  # a number that comes in between counts as one of the next step
            values = self._values.read_value()
        # A number that a message has carried is not new.
        newest = tf.where(offers > self._carried.read_value(), values, tf.constant(float("nan")))
        return {name: newest[place] for place, name in enumerate(self._names)}, offers

    def carry(self, offers: Any) -> None:
        """Graph: the message with these offers has come to its end, on whichever rank."""
        if self._names:
            self._carried.assign(offers)

    def _note_unused(self, name: str, *, where: str) -> None:
        if name in self._unused:
            return
        self._unused.add(name)
        declared = ", ".join(map(repr, self._names)) or "none"
        print(
            f"kungfu: training.feed({name!r}) ({where}) goes nowhere: no rule of this run uses "
            f"training.fed({name!r}); names that are used: {declared}",
            file=sys.stderr,
        )

    def _refuse(self, name: str, what: str, *, where: str) -> None:
        raise misuse(self._declared[name], what, policy=self._policies[name], where=where)


def _number(value: Any) -> float | None:
    """A number of Python's, of NumPy's or in a tensor; a truth value and a text are none."""
    if isinstance(value, bool | np.bool_ | str | bytes) or tuple(getattr(value, "shape", ())):
        return None
    if getattr(getattr(value, "dtype", None), "name", "") == "bool":  # of a tensor, or of an array without dimensions
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number beyond every float
        return float("inf")
    except (TypeError, ValueError):
        return None
