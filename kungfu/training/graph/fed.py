"""What the user's program feeds to the policies between its steps: held by each peer until the next message.

Feeding and sending are counted, as requests for a barrier are: the program counts what it offers, the step what a
message has carried. So a number that is fed while a step runs, by another thread say, is not lost: it rides on the next
message. What the message brings is kept by a fold of the policy (`kungfu.signal.own_sources`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.compiler import Plan
from kungfu.signal import Source
from kungfu.signal.own_sources import misuse
from kungfu.training.graph.variable_io import write_variable

__all__ = ["FedValues"]

_LARGEST = float(np.finfo(np.float32).max)


class FedValues:
    """The numbers of this peer, one entry per declared name."""

    def __init__(self, declared: Mapping[str, Source], policies: Mapping[str, str]) -> None:
        self._declared, self._policies = declared, policies
        self._names = list(declared)
        # Held while the step is tried out, which gives every variable back what it held.
        self.lock = threading.RLock()
        self._newest, self._counts = np.full(len(declared), np.nan, np.float32), np.zeros(len(declared), np.int64)
        self._values = tf.Variable(self._newest, trainable=False, name="kungfu/fed")
        self._offers = tf.Variable(self._counts, trainable=False, name="kungfu/fed_offers")
        self._carried = tf.Variable(self._counts, trainable=False, name="kungfu/fed_carried")

    @classmethod
    def of(cls, plan: Plan) -> FedValues:
        """Those that a plan's rules use."""
        declared = plan.given_by("feed")
        return cls(declared, {name: plan.rules_reading(name)[0] for name in declared})

    @property
    def names(self) -> list[str]:
        """The declared names."""
        return list(self._names)

    def variables(self) -> list[tf.Variable]:
        """Those that a step reads, if there is any name."""
        return [self._values, self._offers, self._carried] if self._names else []

    def feed(self, name: str, value: Any, *, where: str) -> None:
        """Host: a number for the next message, from the user's line ``where``; ``PolicyError`` for anything else."""
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
        """Graph: by name what no message has carried yet, NaN where that is nothing; and what `carry` takes."""
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
