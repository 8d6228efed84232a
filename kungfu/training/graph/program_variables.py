"""The values that the user's program passes to policies: published in a step, or fed between steps.

A published value is stored in a variable, one per name that a rule uses. The tensor itself would not work: a value may
come from a branch, or from a function inside the step, which TensorFlow traces only once. The variable is cleared at
the beginning of each call of the step, so a value that is not published is unknown.

Each peer stores a fed value until the next message. Feeding and sending are counted, like requests for a barrier: the
program counts its offers, and the step counts the offers that a message has carried. So a number that is fed during a
step, for example by another thread, is not lost, but rides on the next message. A fold of the policy stores the
received value (`kungfu.signal.training`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Mapping
from typing import Any, Literal, NoReturn

import numpy as np
import tensorflow as tf

from kungfu.compiler import CompiledPolicies
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


class _DeclaredValues:
    """The values, either published or fed, whose names a plan's rules declare."""

    def __init__(self, plan: CompiledPolicies, giver: Literal["publish", "feed"]) -> None:
        self._declared = plan.given_by(giver)
        self._policies = {name: plan.rules_reading(name)[0] for name in self._declared}

    def refuse(self, name: str, what: str, *, where: str = "") -> NoReturn:
        """Raises ``PolicyError`` for a declared name, with its policy and line, and the user's line ``where``."""
        raise misuse(self._declared[name], what, policy=self._policies[name], where=where)


class PublishedValues(_DeclaredValues):
    """The variables of the published names that a plan's rules use. ``_held`` keeps the values, other than floats, that
    the share's last micro-batch with samples has published."""

    def __init__(self, plan: CompiledPolicies) -> None:
        super().__init__(plan, "publish")
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
        """All published variables, which a step writes."""
        return [*self.variables.values(), *self._held.values()]

    def clear(self) -> None:
        """Graph: clears the values at the beginning of a step."""
        for variable in self.variables.values():
            variable.assign(_nothing(variable.dtype))

    def publish(self, name: str, value: Any, *, where: str) -> None:
        """Graph: publishes a value at the user's line ``where``; ``PolicyError`` if the type or shape is wrong."""
        variable = self.variables[name]
        tensor = tf.convert_to_tensor(value)
        # An implicit cast could lose precision that matters.
        if not _is_alike(tensor.dtype, variable.dtype):
            self.refuse(
                name,
                f"was given a {tensor.dtype.name}, and is declared as {variable.dtype.name}: cast it, as in "
                f"tf.cast(x, tf.{variable.dtype.name}), or declare another dtype",
                where=where,
            )
        # Only the user can reduce an array to one number; a value of unknown shape fails when the step runs.
        if tensor.shape.rank not in (0, None):
            self.refuse(
                name,
                f"was given a tensor of shape {tensor.shape}: it takes one number; reduce it in the step, as in "
                "tf.reduce_mean(x)",
                where=where,
            )
        variable.assign(tf.cast(tf.reshape(tensor, []), variable.dtype))

    def refuse_missing(self, given: Collection[str], captured: Collection[int]) -> None:
        """Tracing, before the message: raises ``PolicyError`` for a name that this trace of the step has not published.
        If a function that publishes was traced earlier, the only evidence is ``captured``: the ids of the handles that
        the graph uses."""
        for name, variable in self.variables.items():
            # Neither the step nor a function called by it writes the variable.
            if name not in given and id(variable.handle) not in captured:
                others = ", ".join(repr(one) for one in given) or "nothing"
                self.refuse(
                    name,
                    "is not called in the step before training.average(), whose message carries what the policies "
                    f"need (published there: {others}): publish it on every peer, before the gradients are averaged",
                )

    def hold(self, samples: Any, done: Any) -> None:
        """Graph: restores published values, except floats, if the micro-batch with index ``done`` has no samples."""
        # A micro-batch without samples ran on another peer's sample.
        for name, held in self._held.items():
            before = tf.where(done > 0, held.read_value(), _nothing(held.dtype))
            held.assign(tf.where(samples > 0, self.variables[name].read_value(), before))
            self.variables[name].assign(held.read_value())

    def floats(self) -> list[Any]:
        """Graph: the float values, which are averaged over micro-batches, in the order that `offered` expects."""
        return [one.read_value() for one in self.variables.values() if one.dtype.is_floating]

    def offered(self, floats: list[Any], samples: Any) -> dict[str, Any]:
        """Graph: the published values by name; NaN, 0 or False on a peer without samples. ``floats``: the floats as
        means over the peer's share of the step."""
        averaged = iter(floats)
        values = {
            name: next(averaged) if one.dtype.is_floating else one.read_value() for name, one in self.variables.items()
        }
        # A peer without samples ran on another peer's sample, so its values do not count.
        return {name: tf.where(samples > 0, value, _nothing(value.dtype)) for name, value in values.items()}


def _is_alike(given: Any, wanted: Any) -> bool:
    """True if two dtypes are of one kind: floats of any width, or integers; bool is not a number."""
    if wanted.is_bool or given.is_bool:
        return bool(given == wanted)
    return bool(given.is_floating if wanted.is_floating else given.is_integer)


def publish(published: PublishedValues, trace: StepTrace, name: str, value: Any) -> None:
    """Graph: publishes a value, in the step of ``trace`` or in a function that the step may call."""
    if tf.executing_eagerly() and not trace.is_under_way:
        raise UsageError(
            f"training.publish({name!r}) was called outside of a function marked @training.step: there it is of no "
            "step; a number that is known between two steps goes to the policies by training.feed(name, value)"
        )
    if name not in published.variables:  # no policy of this run uses it; policies of another run may
        trace.published[name] = None, ""
        return
    with trace.ours():
        # In a graph, the op's traceback has the user's line: AutoGraph runs a copy of the code.
        is_graph = not tf.executing_eagerly()
        where = line_of(tf.no_op()) if is_graph else location_of_caller()
        # XLA compiles the whole function into one op, which cannot write kungfu's variables.
        if is_graph and is_in_xla_context(tf.compat.v1.get_default_graph()):
            published.refuse(
                name,
                "was called inside a tf.function(jit_compile=True), of which XLA makes one whole: return the value "
                "from it, and publish it in the step",
                where=where,
            )
        # The second value of a step would overwrite the first.
        if trace.is_under_way and (before := trace.publish(name, where)):
            published.refuse(name, f"is called a second time in one step, after {before}: publish it once", where=where)
        published.publish(name, value, where=where)


def line_of(operation: tf.Operation) -> str:
    """The ``file:line`` in the user's source (not in AutoGraph's copy) that created an operation; "" if unknown."""
    return location_in_frames((one.filename, one.lineno) for one in operation.traceback)


class FedValues(_DeclaredValues):
    """The numbers that the program on this peer feeds to a plan's rules, one entry per declared name."""

    def __init__(self, plan: CompiledPolicies) -> None:
        super().__init__(plan, "feed")
        self._names, self._unused = list(self._declared), set[str]()  # _unused: fed names that no policy uses
        # Held during the warm-up, which restores the value of every variable afterwards.
        self.lock = threading.RLock()
        self._newest, self._counts = np.full(len(self._names), np.nan, np.float32), np.zeros(len(self._names), np.int64)
        self._values = tf.Variable(self._newest, trainable=False, name="kungfu/fed")
        self._offers = tf.Variable(self._counts, trainable=False, name="kungfu/fed_offers")
        self._carried = tf.Variable(self._counts, trainable=False, name="kungfu/fed_carried")

    def variables(self) -> list[tf.Variable]:
        """The variables that a step reads; none if the plan's rules read no fed number."""
        return [self._values, self._offers, self._carried] if self._names else []

    def feed(self, name: str, value: Any, *, where: str) -> None:
        """Host: feeds a number, given at the user's line ``where``; ``PolicyError`` if the number is not finite."""
        if name not in self._declared:
            self._note_unused(name, where=where)
            return
        number = _number(value)
        # The value is not a number but a text, a bool or an array.
        if number is None:
            self.refuse(name, f"was given {value!r}, a {type(value).__name__}: it takes a number", where=where)
        # A fold would skip NaN and infinity, and silently continue with its last number.
        if not abs(number) <= _LARGEST:
            self.refuse(
                name,
                f"was given {value!r}: it takes a finite number that a float32 can hold; leave the call out while "
                "there is none, and the last one stays",
                where=where,
            )
        index = self._names.index(name)
        with self.lock:
            self._newest[index] = number
            self._counts[index] += 1
            write_variable(self._values, self._newest)  # before the count, which announces the number to a step
            write_variable(self._offers, self._counts)

    def offered(self) -> tuple[dict[str, Any], Any]:
        """Graph: the fed numbers by name (NaN for each not fed since the last message), and the value for `carry`."""
        # No policy is fed: the step needs no op.
        if not self._names:
            return {}, None
        offers = self._offers.read_value()
        with tf.control_dependencies([offers]):  # a number fed between the two reads belongs to the next step
            values = self._values.read_value()
        # A number that a message has already carried is not offered again.
        newest = tf.where(offers > self._carried.read_value(), values, tf.constant(float("nan")))
        return {name: newest[index] for index, name in enumerate(self._names)}, offers

    def carry(self, offers: Any) -> None:
        """Graph, on every rank: records that a message has carried the fed numbers up to the count ``offers``."""
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


def _number(value: Any) -> float | None:
    """A number from Python, NumPy or a tensor as a float; ``None`` for any other value, including bool and text."""
    if isinstance(value, bool | np.bool_ | str | bytes) or tuple(getattr(value, "shape", ())):
        return None
    if getattr(getattr(value, "dtype", None), "name", "") == "bool":  # of a tensor, or an array without dimensions
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of float
        return float("inf")
    except (TypeError, ValueError):
        return None
